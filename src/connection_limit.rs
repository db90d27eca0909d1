//! Accepts no more connections than may be open: the rest wait in the kernel, and push back on whoever
//! opens them.
//!
//! ```no_run
//! use axum::{Router, routing::get};
//! use tokio::net::TcpListener;
//! use tower_backpressure::{ConcurrencyLimitLayer, ConnectionLimit};
//!
//! # async fn serve() -> std::io::Result<()> {
//! let connections = ConcurrencyLimitLayer::new(10_000).name("connections").handle();
//! let listener = TcpListener::bind("127.0.0.1:3000").await?;
//! let listener = ConnectionLimit::new(listener, connections.clone());
//!
//! let app = Router::new().route("/", get(|| async { "hello" }));
//! # #[cfg(feature = "axum")]
//! axum::serve(listener, app).await // with the feature `axum`
//! # ; Ok(())
//! # }
//! ```
//!
//! # When to use it
//! In every server that strangers can reach. A connection costs memory and a file descriptor before it
//! has sent a single request, and the layers of this crate only see requests: whoever opens connections
//! and says nothing never gets to them. What such a connection may cost is for the server to bound in
//! time: hyper has a timeout for the head of a request (`header_read_timeout`, which needs a `Timer`),
//! and `examples/hyper_server.rs` shows it.
//!
//! # How the transport pushes back
//! | | what waits | what it is bounded by |
//! | --- | --- | --- |
//! | TCP | connections that are not accepted | the backlog of `listen`, and `net.core.somaxconn` |
//! | HTTP/1 | the next request on a connection, until the one before it is answered | one at a time |
//! | HTTP/2 | streams past `max_concurrent_streams` (hyper: 200), in the client | connections × streams is what a limit inside sees |
//! | HTTP/2 | bodies, past the windows of stream and connection (hyper: 64 KiB and up) | what the handler does not read is not sent |
//!
//! # Behaviour
//! [`accept`](ConnectionLimit::accept) waits for a permit of a [concurrency
//! limit](crate::concurrency_limit), in line with whoever else asks for one, and then for a connection,
//! which holds the permit until it is dropped. The limit can be changed and looked at through its handle.
//! Only one permit is ever held for a connection that is yet to come.
//!
//! # Errors
//! Those of the listener. If the limit refuses to let the listener wait (`max_waiting`, `max_wait`), it
//! asks again: nobody is there yet to be told.
//!
//! # Cancellation
//! `accept` may be dropped at any point: no connection is lost, and the permit goes back.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
};

use pin_project_lite::pin_project;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
};

use crate::{Permit, concurrency_limit::Handle};

/// A listener under a limit. See the [module](self) for all of it.
#[derive(Debug)]
pub struct ConnectionLimit<L> {
    listener: L,
    limit: Handle,
}

impl<L> ConnectionLimit<L> {
    /// Connections of this listener are held to this limit, together with whatever else is.
    pub fn new(listener: L, limit: Handle) -> Self {
        Self { listener, limit }
    }

    async fn permit(&self) -> Permit {
        loop {
            match self.limit.acquire().await {
                Ok(permit) => return permit,
                Err(refused) => tokio::time::sleep(refused.retry_after()).await,
            }
        }
    }
}

impl ConnectionLimit<TcpListener> {
    /// The next connection, when there is room for one.
    ///
    /// # Errors
    /// As `TcpListener::accept`.
    pub async fn accept(&self) -> io::Result<(HeldConnection<TcpStream>, SocketAddr)> {
        let permit = self.permit().await;
        let (io, address) = self.listener.accept().await?;
        Ok((HeldConnection { io, permit }, address))
    }

    /// The address that it listens on.
    ///
    /// # Errors
    /// As `TcpListener::local_addr`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

#[cfg(feature = "axum")]
impl<L: axum::serve::Listener + Sync> axum::serve::Listener for ConnectionLimit<L> {
    type Io = HeldConnection<L::Io>;
    type Addr = L::Addr;

    async fn accept(&mut self) -> (Self::Io, L::Addr) {
        let permit = self.permit().await;
        let (io, address) = self.listener.accept().await;
        (HeldConnection { io, permit }, address)
    }

    fn local_addr(&self) -> io::Result<L::Addr> {
        self.listener.local_addr()
    }
}

pin_project! {
    /// A connection that holds a permit until it is dropped. Otherwise it is the connection that it
    /// wraps.
    #[derive(Debug)]
    pub struct HeldConnection<Io> {
        #[pin]
        io: Io,
        permit: Permit,
    }
}

impl<Io> HeldConnection<Io> {
    /// The connection itself.
    pub fn get_ref(&self) -> &Io {
        &self.io
    }

    /// The connection itself.
    pub fn get_mut(&mut self) -> &mut Io {
        &mut self.io
    }

    /// The connection, and the permit that it held.
    pub fn into_parts(self) -> (Io, Permit) {
        (self.io, self.permit)
    }
}

impl<Io: AsyncRead> AsyncRead for HeldConnection<Io> {
    #[inline]
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.project().io.poll_read(cx, buffer)
    }
}

impl<Io: AsyncWrite> AsyncWrite for HeldConnection<Io> {
    #[inline]
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.project().io.poll_write(cx, buffer)
    }

    #[inline]
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.project().io.poll_write_vectored(cx, buffers)
    }

    #[inline]
    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    #[inline]
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.project().io.poll_flush(cx)
    }

    #[inline]
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.project().io.poll_shutdown(cx)
    }
}
