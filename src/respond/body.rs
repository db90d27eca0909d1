//! The body of a response: the inner service's, or an answer of ours.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

pin_project! {
    /// The body of the inner service's response, or of an answer to overload.
    #[derive(Debug)]
    pub struct OverloadBody<C> {
        #[pin]
        kind: Kind<C>,
    }
}

pin_project! {
    #[project = KindProjection]
    #[derive(Debug)]
    enum Kind<C> {
        Inner { #[pin] body: C },
        // Until it is read.
        Own { body: Option<Bytes> },
    }
}

impl<C> OverloadBody<C> {
    #[inline]
    pub(super) fn inner(body: C) -> Self {
        Self {
            kind: Kind::Inner { body },
        }
    }

    pub(super) fn own(body: Bytes) -> Self {
        let body = (!body.is_empty()).then_some(body);
        Self {
            kind: Kind::Own { body },
        }
    }
}

impl<C> Default for OverloadBody<C> {
    /// Empty.
    fn default() -> Self {
        Self::own(Bytes::new())
    }
}

impl<C: Body> Body for OverloadBody<C>
where
    C::Data: From<Bytes>,
{
    type Data = C::Data;
    type Error = C::Error;

    #[inline]
    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<C::Data>, C::Error>>> {
        match self.project().kind.project() {
            KindProjection::Inner { body } => body.poll_frame(cx),
            KindProjection::Own { body } => {
                Poll::Ready(body.take().map(|body| Ok(Frame::data(body.into()))))
            }
        }
    }

    #[inline]
    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Inner { body } => body.is_end_stream(),
            Kind::Own { body } => body.is_none(),
        }
    }

    #[inline]
    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Inner { body } => body.size_hint(),
            Kind::Own { body } => {
                SizeHint::with_exact(body.as_ref().map_or(0, |body| body.len() as u64))
            }
        }
    }
}
