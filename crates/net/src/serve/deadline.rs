//! Deadlines of calls: a call whose client set one is answered with DEADLINE_EXCEEDED, the code
//! TensorFlow's clients wait for. (The transport's own timer would answer CANCELLED.)

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::{HeaderMap, Request, Response};

/// How much earlier than its client a server gives up, so that its answer comes in time.
const HEAD_START: Duration = Duration::from_millis(5);

/// Answers calls of `inner` that outlive their deadline.
#[derive(Clone)]
pub(crate) struct Deadline<S> {
    inner: S,
}

impl<S> Deadline<S> {
    pub(crate) fn new(inner: S) -> Self {
        Deadline { inner }
    }
}

impl<S> Service<Request<Body>> for Deadline<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let limit = limit_of(request.headers());
        let answer = self.inner.call(request);
        let Some(limit) = limit else {
            return Box::pin(answer);
        };
        Box::pin(async move {
            match tokio::time::timeout(limit, answer).await {
                Ok(answer) => answer,
                Err(_) => Ok(Status::deadline_exceeded("Deadline Exceeded").into_http()),
            }
        })
    }
}

/// How long a call with these headers may take.
pub(crate) fn limit_of(headers: &HeaderMap) -> Option<Duration> {
    let limit = timeout(headers)?;
    Some(limit.saturating_sub(HEAD_START.min(limit / 10)))
}

/// The `grpc-timeout` header: up to eight digits and a unit. Anything else is no deadline.
fn timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.len() > 8 {
        return None;
    }
    let n: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(n * 3600),
        "M" => Duration::from_secs(n * 60),
        "S" => Duration::from_secs(n),
        "m" => Duration::from_millis(n),
        "u" => Duration::from_micros(n),
        "n" => Duration::from_nanos(n),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    fn headers(value: &'static str) -> HeaderMap {
        let mut map = HeaderMap::new();
        map.insert("grpc-timeout", value.parse().unwrap());
        map
    }

    #[test]
    fn reads_the_header() {
        let cases = [
            ("3S", Some(Duration::from_secs(3))),
            ("200m", Some(Duration::from_millis(200))),
            ("99999999H", Some(Duration::from_secs(99_999_999 * 3600))),
            ("999999999S", None),
            ("", None),
            ("S", None),
            ("5x", None),
        ];
        for (text, want) in cases {
            assert_eq!(timeout(&headers(text)), want, "{text:?}");
        }
        assert_eq!(timeout(&HeaderMap::new()), None);
    }

    #[derive(Clone)]
    struct Never;

    impl Service<Request<Body>> for Never {
        type Response = Response<Body>;
        type Error = Infallible;
        type Future = std::future::Pending<Result<Response<Body>, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Request<Body>) -> Self::Future {
            std::future::pending()
        }
    }

    #[tokio::test]
    async fn answers_when_the_time_is_over() {
        let mut request = Request::new(Body::empty());
        *request.headers_mut() = headers("20m");
        let answer = Deadline::new(Never).call(request).await.unwrap();
        let status = Status::from_header_map(answer.headers()).unwrap();
        assert_eq!(status.code(), Code::DeadlineExceeded);
    }
}
