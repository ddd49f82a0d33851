//! Feeds what a function brings.

use super::{Context, Hook};
use downpour_build::{Output, Result, Tensor};
use downpour_client::Run;

/// Tensors to feed, with their values.
type Feeds = Vec<(Output, Tensor)>;

/// Feeds every step what a function brings. What a step that was lost did not use is fed to the
/// one that repeats it; an error of the function's is the step's, so that `OUT_OF_RANGE` ends
/// training.
///
/// ```
/// use downpour::train::Supervision;
/// use downpour::train::hooks::Feed;
/// use downpour::{Code, DType, Graph, Server, ServerConfig, Status, Tensor};
/// let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let x = g.placeholder("x", DType::Float, ());
/// let double = &x * 2.0;
/// let mut values = [1.0f32, 2.0].into_iter();
/// let feed = Feed::new(move || match values.next() {
///     Some(value) => Ok(vec![(x.clone(), Tensor::scalar(value))]),
///     None => Err(Status::out_of_range("no more values")),
/// });
/// let mut session = Supervision::new(&server, &g).hook(feed).open()?;
/// assert_eq!(session.step().fetch(&double)?.scalar_value::<f32>()?, 2.0);
/// assert_eq!(session.step().fetch(&double)?.scalar_value::<f32>()?, 4.0);
/// assert_eq!(session.step().fetch(&double).unwrap_err().code, Code::OutOfRange);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Feed {
    bring: Box<dyn FnMut() -> Result<Feeds> + Send>,
    unused: Option<Feeds>,
}

impl Feed {
    /// Feeds what this brings.
    pub fn new(bring: impl FnMut() -> Result<Feeds> + Send + 'static) -> Feed {
        Feed {
            bring: Box::new(bring),
            unused: None,
        }
    }
}

impl Hook for Feed {
    fn before_run(&mut self, run: &mut Run) {
        let feeds = match self.unused.take() {
            Some(feeds) => feeds,
            None => match (self.bring)() {
                Ok(feeds) => feeds,
                Err(why) => {
                    run.fail(why);
                    return;
                }
            },
        };
        for (output, value) in &feeds {
            run.feed(output, value);
        }
        self.unused = Some(feeds);
    }

    fn after_run(&mut self, _: &mut Context<'_>) -> Result<()> {
        self.unused = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use downpour_build::{DType, Graph, Status};

    #[test]
    fn what_was_not_used_is_fed_again() {
        let g = Graph::new();
        let x = g.placeholder("x", DType::Int64, ());
        let mut next = 0i64;
        let mut feed = Feed::new(move || {
            next += 1;
            match next {
                1 => Ok(vec![(x.clone(), Tensor::scalar(next))]),
                _ => Err(Status::out_of_range("no more")),
            }
        });
        for _ in 0..2 {
            let mut run = Run::new();
            feed.before_run(&mut run);
            assert!(run.broken().is_none());
        }
        feed.unused = None;
        let mut run = Run::new();
        feed.before_run(&mut run);
        assert_eq!(run.broken().unwrap().message, "no more");
    }
}
