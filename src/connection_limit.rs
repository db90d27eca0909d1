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
//! has sent a single request, and the layers of this crate only see requests.
//!
//! A limit alone is not enough. Without one, a connection that sends nothing costs a little memory; with one, it takes a
//! place from the others. So connections have to be bounded in time too.
//!
//! **When not to use it:** as the only limit: one connection can carry many requests. Put an [`edge()`](fn@crate::edge) behind it.
//!
//! # The time until the first request
//! A connection that has not sent the whole head of its first request in time is closed: it reads an error, which ends
//! it in every server, and its permit is released. Sending a byte now and then does not help, nor does the preface of
//! HTTP/2, nor frames other than those of a head. Under `axum::serve` that time is 10 s by default
//! ([`head_timeout`](ConnectionLimit::head_timeout)).
//!
//! What follows the first request is for the server to bound:
//!
//! | | how |
//! | --- | --- |
//! | HTTP/1: the next head, or nothing | `header_read_timeout` of hyper, which does nothing without a `Timer`. `axum::serve` does not set it. It does not begin before hyper-util knows which version the client speaks, so `head_timeout` is needed as well |
//! | HTTP/2: no further streams | `keep_alive_interval` of hyper finds peers that are gone. One that answers pings stays |
//! | all of it | an age after which connections are shut down gracefully; a limit for each address further out |
//!
//! `examples/serve/mod.rs` is a loop that does this, for any tower service. Serve health checks on a listener of their own,
//! so that they are answered while all permits are taken.
//!
//! The bytes of a TLS connection cannot be read here: one that begins with a TLS handshake is not bound by `head_timeout`.
//! Bound the handshake where TLS is accepted.
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
//! Those of the listener. A connection whose first head is late reads [`TimedOut`](io::ErrorKind::TimedOut). If the limit refuses to let the listener wait (`max_waiting`, `max_wait`), it
//! asks again: nobody is there yet to be told.
//!
//! # Cancellation
//! `accept` may be dropped at any point: no connection is lost, and the permit goes back.

mod head;

use std::{
    fmt,
    future::Future,
    io,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use pin_project_lite::pin_project;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    time::{Sleep, sleep},
};

use self::head::Head;
use crate::{Permit, concurrency_limit::Handle};

/// Under `axum::serve`, which has no timeout of its own. A client sends a head with its first packet, so this is many
/// times what one on a bad connection needs; a browser that opens a connection in advance opens another.
#[cfg(feature = "axum")]
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// A listener under a limit. See the [module](self) for all of it.
#[derive(Debug)]
pub struct ConnectionLimit<L> {
    listener: L,
    limit: Handle,
    head_timeout: HeadTimeout,
}

#[derive(Clone, Copy, Debug)]
enum HeadTimeout {
    /// Depends on what the listener is used for.
    Default,
    No,
    After(Duration),
}

impl<L> ConnectionLimit<L> {
    /// Connections of this listener are held to this limit, together with whatever else is.
    pub fn new(listener: L, limit: Handle) -> Self {
        Self {
            listener,
            limit,
            head_timeout: HeadTimeout::Default,
        }
    }

    /// Closes a connection that has not sent the whole head of its first request within this time. See
    /// [the time until the first request](self#the-time-until-the-first-request).
    ///
    /// By default it is 10 s under `axum::serve`, and no time for connections that are taken with
    /// [`accept`](Self::accept): those may speak TLS, or no HTTP at all. Set it there if they speak HTTP as they come.
    pub fn head_timeout(mut self, timeout: Duration) -> Self {
        self.head_timeout = HeadTimeout::After(timeout);
        self
    }

    /// Lets connections take as long as they like for their first request.
    pub fn no_head_timeout(mut self) -> Self {
        self.head_timeout = HeadTimeout::No;
        self
    }

    fn hold<Io>(&self, io: Io, permit: Permit, default: Option<Duration>) -> HeldConnection<Io> {
        let timeout = match self.head_timeout {
            HeadTimeout::Default => default,
            HeadTimeout::No => None,
            HeadTimeout::After(timeout) => Some(timeout),
        };
        let first = timeout.map(|timeout| FirstHead {
            head: Head::START,
            timer: Box::pin(sleep(timeout)),
        });
        HeldConnection { io, permit, first }
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
        Ok((self.hold(io, permit, None), address))
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
        (self.hold(io, permit, Some(HEAD_TIMEOUT)), address)
    }

    fn local_addr(&self) -> io::Result<L::Addr> {
        self.listener.local_addr()
    }
}

#[cfg(feature = "tonic")]
impl<Io> tonic::transport::server::Connected for HeldConnection<Io>
where
    Io: tonic::transport::server::Connected,
{
    type ConnectInfo = Io::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.io.connect_info()
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
        // Until it is complete, if it has to be in time.
        first: Option<FirstHead>,
    }
}

/// The head of a connection's first request.
struct FirstHead {
    head: Head,
    timer: Pin<Box<Sleep>>,
}

impl fmt::Debug for FirstHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FirstHead").field(&self.head).finish()
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
        let this = self.project();
        let Some(first) = this.first else {
            return this.io.poll_read(cx, buffer);
        };
        let before = buffer.filled().len();
        let polled = this.io.poll_read(cx, buffer);
        first.head.read(&buffer.filled()[before..]);
        if first.head == Head::Complete {
            *this.first = None;
        } else if polled.is_pending() && first.timer.as_mut().poll(cx).is_ready() {
            let late = "the first request took too long";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, late)));
        }
        polled
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
