//! Something that is held for as long as an answer is on its way.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;
use hyper::body::{Frame, SizeHint};

/// A body, and what is dropped with it.
struct Held<T> {
    body: Body,
    _resource: T,
}

/// The response, which holds on to `resource` until the connection has taken the last of its body.
pub(crate) fn until_sent<T: Unpin + Send + 'static>(response: Response, resource: T) -> Response {
    response.map(|body| Body::new(Held { body, _resource: resource }))
}

impl<T: Unpin> HttpBody for Held<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
