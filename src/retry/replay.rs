//! Bodies that can be sent again.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

/// A body that may be sent again. A request whose body is not, is sent once and its answer is final.
///
/// Bodies that are opaque streams, as those of tonic's clients, cannot: collect them, and send what has
/// been collected. For bodies of other crates there is
/// [`RetryPolicy::replay`](super::RetryPolicy::replay), and for those of which some can be sent again
/// and some cannot, [`ReplayBody`].
#[diagnostic::on_unimplemented(
    message = "a policy cannot tell whether a body of type `{Self}` can be sent again",
    note = "say how with `.replay(|body: &{Self}| …)` on the `RetryPolicy`, such as `Some(body.clone())`; or send a `ReplayBody`"
)]
pub trait Replay: Sized {
    /// The same body from its beginning, or nothing if that cannot be had. Asked for before the request
    /// is sent, and so for every request: it should cost little.
    fn replay(&self) -> Option<Self>;
}

macro_rules! by_clone {
    ($($body:ty),*) => {$(
        impl Replay for $body {
            fn replay(&self) -> Option<Self> {
                Some(self.clone())
            }
        }
    )*};
}
by_clone!((), Bytes, String, Vec<u8>, &'static str, &'static [u8]);

/// Makes the body of a retry. Implemented by [`OfItself`], and by any `Fn(&B) -> Option<B>`.
pub trait ReplayWith<B> {
    /// The same body from its beginning, or nothing if that cannot be had.
    fn replay(&self, body: &B) -> Option<B>;
}

/// The body knows: it is a [`Replay`].
#[derive(Clone, Copy, Debug, Default)]
pub struct OfItself;

impl<B: Replay> ReplayWith<B> for OfItself {
    fn replay(&self, body: &B) -> Option<B> {
        body.replay()
    }
}

impl<B, F: Fn(&B) -> Option<B>> ReplayWith<B> for F {
    fn replay(&self, body: &B) -> Option<B> {
        self(body)
    }
}

pin_project! {
    /// A body that is either whole, and can be sent as often as one likes, or a stream, and is sent
    /// once.
    ///
    /// ```
    /// use bytes::Bytes;
    /// use http_body_util::Full;
    /// use tower_backpressure::retry::{Replay, ReplayBody};
    ///
    /// let whole = ReplayBody::<Full<Bytes>>::whole("a few bytes");
    /// assert!(whole.replay().is_some());
    ///
    /// let stream = Full::<Bytes>::from("might as well come from a socket");
    /// assert!(ReplayBody::once(stream).replay().is_none());
    /// assert!(ReplayBody::once(Full::<Bytes>::default()).replay().is_some()); // nothing is in it
    /// ```
    ///
    /// Its data are [`Bytes`], as those of hyper's, axum's and tonic's bodies.
    pub struct ReplayBody<B> {
        #[pin]
        kind: Kind<B>,
    }
}

pin_project! {
    #[project = KindProjection]
    enum Kind<B> {
        Whole { bytes: Bytes },
        Once { #[pin] body: B },
    }
}

impl<B> ReplayBody<B> {
    /// All of it is there. Sending it again copies nothing.
    pub fn whole(bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        Self {
            kind: Kind::Whole { bytes },
        }
    }

    /// It is gone when it has been sent, unless it is at its end before that, as the body of a GET that
    /// is passed on: nothing can be sent as often as one likes.
    pub fn once(body: B) -> Self {
        Self {
            kind: Kind::Once { body },
        }
    }
}

impl<B: Body> Replay for ReplayBody<B> {
    fn replay(&self) -> Option<Self> {
        match &self.kind {
            Kind::Whole { bytes } => Some(Self::whole(bytes.clone())),
            Kind::Once { body } if body.is_end_stream() => Some(Self::default()),
            Kind::Once { .. } => None,
        }
    }
}

impl<B> Default for ReplayBody<B> {
    /// Nothing, as often as one likes.
    fn default() -> Self {
        Self::whole(Bytes::new())
    }
}

impl<B> From<Bytes> for ReplayBody<B> {
    fn from(bytes: Bytes) -> Self {
        Self::whole(bytes)
    }
}

impl<B: Body<Data = Bytes>> Body for ReplayBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().kind.project() {
            KindProjection::Whole { bytes } if bytes.is_empty() => Poll::Ready(None),
            KindProjection::Whole { bytes } => {
                Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes)))))
            }
            KindProjection::Once { body } => body.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Whole { bytes } => bytes.is_empty(),
            Kind::Once { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Whole { bytes } => SizeHint::with_exact(bytes.len() as u64),
            Kind::Once { body } => body.size_hint(),
        }
    }
}

impl<B> fmt::Debug for ReplayBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Whole { bytes } => write!(f, "ReplayBody::whole({} bytes)", bytes.len()),
            Kind::Once { .. } => f.write_str("ReplayBody::once(..)"),
        }
    }
}
