//! `Prefetch`: a task of its own that walks ahead and fills a buffer, and the pipe it does it with.

use super::access::Opened;
use super::dataset::{Cardinality, Dataset, Got, Iter, Next, Place, Recipe, Stream};
use super::define;
use super::state::{Restoring, Saving, State, got_state, state_got};
use super::task::{TaskHandle, Turnstile, Wakers, spawn};
use downpour_graph::{Result, Status};
use downpour_runtime::{Device, OpContext, Registry};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

/// Buffers that tune themselves do not grow beyond this.
const MAX_TUNED: usize = 512;

pub(super) fn register(r: &mut Registry) {
    r.add("PrefetchDataset", |_| define::dataset(prefetch));
}

fn prefetch(ctx: &mut OpContext<'_>) -> Result<Dataset> {
    let input = define::input(ctx, 0)?;
    let size = define::int(ctx, 1, "buffer_size")?;
    if size < -1 {
        return Err(Status::invalid_argument(
            "buffer_size must be >= 0 or set buffer_size to be -1 for auto-tuning",
        ));
    }
    let recipe = Prefetch {
        input: input.clone(),
        size,
    };
    Dataset::new("Prefetch", input.spec().clone(), vec![input], recipe)
}

struct Prefetch {
    input: Dataset,
    /// Elements in the buffer; tuned if negative.
    size: i64,
}

impl Recipe for Prefetch {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        let input = self.input.iterate(place)?;
        if self.size == 0 {
            return Ok(Box::new(Through(input)));
        }
        Ok(Box::new(Ahead {
            input: Arc::new(Turnstile::new(input)),
            device: place.device.clone(),
            size: usize::try_from(self.size).ok(),
            running: None,
        }))
    }
    fn cardinality(&self) -> Cardinality {
        self.input.cardinality()
    }
    fn access(&self, place: &Place) -> Opened {
        self.input.access(place)
    }
    fn is_ahead(&self, _: &Place) -> bool {
        true
    }
}

/// A walk over `dataset` with a buffer in front of it that tunes itself.
pub(super) fn ahead(dataset: &Dataset, place: &Place) -> Result<Iter> {
    let input = dataset.clone();
    let recipe = Prefetch { input, size: -1 };
    Dataset::new("Prefetch", dataset.spec().clone(), vec![], recipe)?.iterate(place)
}

/// A walk that changes nothing.
pub(super) struct Through(pub(super) Iter);

impl Stream for Through {
    fn input(&mut self) -> Option<&mut Iter> {
        Some(&mut self.0)
    }

    fn next(&mut self) -> Next<'_> {
        Box::pin(self.0.next())
    }
}

struct Ahead {
    /// The walk, which the task takes elements from, and whoever saves it.
    input: Arc<Turnstile<Iter>>,
    device: Arc<Device>,
    size: Option<usize>,
    /// From the first element asked for on.
    running: Option<(Receiver, TaskHandle)>,
}

impl Ahead {
    /// Starts the task; `items` are in the buffer already.
    fn start(&mut self, items: Vec<Got>) -> &mut Receiver {
        let (sender, receiver) = pipe(self.size);
        let ended = matches!(items.last(), Some(Ok(None)));
        receiver.0.lock().items.extend(items);
        let input = self.input.clone();
        let task = spawn(&self.device, async move {
            if !ended {
                walk(&input, sender).await;
            }
        });
        &mut self.running.insert((receiver, task)).0
    }
}

impl Stream for Ahead {
    fn next(&mut self) -> Next<'_> {
        Box::pin(async move {
            if self.running.is_none() {
                self.start(vec![]);
            }
            match &mut self.running {
                Some((receiver, _)) => receiver.next().await,
                None => Ok(None),
            }
        })
    }

    fn ready(&mut self) -> Option<Got> {
        self.running.as_mut()?.0.ready()
    }

    fn save(&mut self) -> Saving<'_> {
        Box::pin(async move {
            // While this has the turn, the buffer holds all that was taken.
            let mut turn = self.input.enter().await;
            let mut state = State::default().with(turn.save().await?);
            if let Some((receiver, _)) = &self.running {
                state
                    .inner
                    .extend(receiver.0.lock().items.iter().map(got_state));
            }
            Ok(Some(state))
        })
    }

    fn restore(&mut self, mut state: State) -> Restoring<'_> {
        Box::pin(async move {
            self.input.enter().await.restore(state.below(0)?).await?;
            let items = state.inner.into_iter().skip(1).map(state_got);
            let items = items.collect::<Result<Vec<_>>>()?;
            if !items.is_empty() {
                self.start(items);
            }
            Ok(())
        })
    }
}

/// Walks to the end, as far ahead as the pipe allows. An error does not end a walk.
async fn walk(input: &Turnstile<Iter>, sender: Sender) {
    loop {
        sender.room().await;
        let mut turn = input.enter().await;
        let got = turn.next().await;
        let ended = matches!(got, Ok(None));
        sender.push(got);
        if ended {
            return;
        }
    }
}

/// A bounded buffer between a walk and whoever takes its elements. Without a size it starts at
/// one element and doubles whenever it was full and has been emptied, as TensorFlow's does.
pub(super) fn pipe(size: Option<usize>) -> (Sender, Receiver) {
    let state = PipeState {
        items: VecDeque::new(),
        closed: false,
        limit: size.unwrap_or(1),
        tuned: size.is_none(),
        was_full: false,
        sender: Wakers::default(),
        receiver: Wakers::default(),
    };
    let shared = Arc::new(Mutex::new(state));
    (Sender(shared.clone()), Receiver(shared))
}

struct PipeState {
    items: VecDeque<Got>,
    closed: bool,
    limit: usize,
    tuned: bool,
    was_full: bool,
    sender: Wakers,
    receiver: Wakers,
}

/// The end that fills; dropped, it closes the pipe.
pub(super) struct Sender(Arc<Mutex<PipeState>>);

impl Sender {
    /// Waits until one more element fits.
    pub(super) async fn room(&self) {
        poll_fn(|cx| {
            let mut pipe = self.0.lock();
            if pipe.items.len() < pipe.limit {
                return Poll::Ready(());
            }
            pipe.was_full = true;
            pipe.sender.add(cx);
            Poll::Pending
        })
        .await;
    }

    pub(super) fn push(&self, got: Got) {
        let wakers = {
            let mut pipe = self.0.lock();
            pipe.items.push_back(got);
            pipe.receiver.take()
        };
        wakers.into_iter().for_each(|w| w.wake());
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        let wakers = {
            let mut pipe = self.0.lock();
            pipe.closed = true;
            pipe.receiver.take()
        };
        wakers.into_iter().for_each(|w| w.wake());
    }
}

/// The end that takes.
pub(super) struct Receiver(Arc<Mutex<PipeState>>);

impl Receiver {
    /// The next element, when it is there.
    pub(super) async fn next(&mut self) -> Got {
        poll_fn(|cx| self.poll(cx)).await
    }

    /// As [`Receiver::next`]; after the end it goes on saying so.
    pub(super) async fn next_or_ended(&mut self) -> Got {
        let got = self.next().await;
        if let Ok(None) = got {
            self.0.lock().items.push_back(Ok(None));
        }
        got
    }

    /// As [`Receiver::next`], for whoever looks at several pipes.
    pub(super) fn poll(&mut self, cx: &std::task::Context<'_>) -> Poll<Got> {
        let mut pipe = self.0.lock();
        let Some(got) = pipe.items.pop_front() else {
            if pipe.closed {
                return Poll::Ready(Err(Status::internal("a walk ended without saying so")));
            }
            if pipe.tuned && pipe.was_full && pipe.limit < MAX_TUNED {
                pipe.limit *= 2;
                pipe.was_full = false;
            }
            pipe.receiver.add(cx);
            let wakers = pipe.sender.take();
            drop(pipe);
            wakers.into_iter().for_each(|w| w.wake());
            return Poll::Pending;
        };
        let wakers = pipe.sender.take();
        drop(pipe);
        wakers.into_iter().for_each(|w| w.wake());
        Poll::Ready(got)
    }

    /// The next element, if it is there.
    pub(super) fn ready(&mut self) -> Option<Got> {
        let (got, wakers) = {
            let mut pipe = self.0.lock();
            (pipe.items.pop_front()?, pipe.sender.take())
        };
        wakers.into_iter().for_each(|w| w.wake());
        Some(got)
    }
}
