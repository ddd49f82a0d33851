//! The queue: elements, whether it is closed, and the attempts that wait to put or take some.
//!
//! Enqueues and closes wait in one list, dequeues in another; each list is served strictly in
//! order. What a partly served `DequeueMany` has taken goes back when the queue closes, but is lost
//! when its step is cancelled, as in TensorFlow.

use super::items::{Element, Heap, Items, Store};
use super::wait::{Done, Ended, Waiting, tell};
use downpour_graph::{Result, Status};
use downpour_runtime::{Cancellation, Held, Resource};
use downpour_tensor::{DType, PartialShape, Tensor};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

/// Which order a queue keeps, and which words its errors use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Fifo,
    Padding,
    Shuffle,
    Priority,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Fifo => "FIFOQueue",
            Kind::Padding => "PaddingFIFOQueue",
            Kind::Shuffle => "RandomShuffleQueue",
            Kind::Priority => "PriorityQueue",
        }
    }

    /// The name in errors of what a padding queue leaves to the plain queue it is built on.
    fn base_name(self) -> &'static str {
        match self {
            Kind::Padding => "FIFOQueue",
            other => other.name(),
        }
    }
}

/// What a queue's node declares.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    pub(crate) kind: Kind,
    pub(crate) name: String,
    pub(crate) types: Vec<DType>,
    /// One for each component, or none.
    pub(crate) shapes: Vec<PartialShape>,
    pub(crate) capacity: usize,
    /// How many elements a shuffling queue keeps back while it is open.
    pub(crate) min_after_dequeue: usize,
    pub(crate) seeds: (i64, i64),
}

/// What a dequeue got.
pub(crate) enum Got {
    /// Nothing was asked for.
    Nothing,
    One(Element),
    Many(Vec<Element>),
}

#[derive(Default)]
enum Put {
    Elements(VecDeque<Element>),
    #[default]
    Close,
}

#[derive(Default)]
enum Take {
    #[default]
    One,
    Many {
        got: Vec<Element>,
        missing: usize,
        /// Whether fewer will do once the queue is closed.
        fewer: bool,
    },
}

enum Progress {
    None,
    Some,
    Complete(Result<Got>),
}

struct State {
    items: Store,
    closed: bool,
    puts: Waiting<Put, Got>,
    takes: Waiting<Take, Got>,
}

/// A queue.
pub(crate) struct Queue {
    pub(crate) spec: Spec,
    state: Mutex<State>,
}

/// TensorFlow's C++ type of all queues.
pub(crate) const QUEUE_TYPE: &str = "N10tensorflow14QueueInterfaceE";

impl Resource for Queue {
    fn type_name(&self) -> &'static str {
        QUEUE_TYPE
    }

    fn held(&self) -> Option<Held> {
        Some(Held {
            kind: "queues",
            bytes: self.state.try_lock()?.items.bytes(),
        })
    }
}

impl Queue {
    pub(crate) fn new(spec: Spec) -> Queue {
        let items = match spec.kind {
            Kind::Fifo | Kind::Padding => Items::Fifo(VecDeque::new()),
            Kind::Shuffle => Items::shuffle(spec.seeds.0 as u64, spec.seeds.1 as u64),
            Kind::Priority => Items::Priority(Heap::default()),
        };
        let state = State {
            items: Store::new(items),
            closed: false,
            puts: Waiting::default(),
            takes: Waiting::default(),
        };
        Queue {
            spec,
            state: Mutex::new(state),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.state.lock().items.len()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// Puts elements in, one after the other as there is room.
    pub(crate) fn enqueue(
        self: &Arc<Self>,
        elements: VecDeque<Element>,
        cancellation: &Arc<Cancellation>,
        done: Done<Got>,
    ) {
        if elements.is_empty() {
            return done(Ok(Got::Nothing));
        }
        self.put(Put::Elements(elements), cancellation, done);
    }

    /// Closes the queue after the enqueues that wait already.
    pub(crate) fn close(self: &Arc<Self>, cancellation: &Arc<Cancellation>, done: Done<Got>) {
        self.put(Put::Close, cancellation, done);
    }

    /// Closes the queue at once; enqueues that wait fail.
    pub(crate) fn close_and_cancel(&self) {
        let ended = {
            let mut state = self.state.lock();
            state.closed = true;
            let mut ended = Vec::new();
            state.puts.fail_all(&enqueue_cancelled(), &mut ended);
            self.flush(&mut state, &mut ended);
            ended
        };
        tell(ended);
    }

    /// Takes one element.
    pub(crate) fn dequeue(self: &Arc<Self>, cancellation: &Arc<Cancellation>, done: Done<Got>) {
        self.take(Take::One, cancellation, done);
    }

    /// Takes `n` elements, or with `fewer` what there is once the queue is closed.
    pub(crate) fn dequeue_many(
        self: &Arc<Self>,
        n: usize,
        fewer: bool,
        cancellation: &Arc<Cancellation>,
        done: Done<Got>,
    ) {
        if n == 0 {
            return done(Ok(Got::Many(Vec::new())));
        }
        let work = Take::Many {
            got: Vec::new(),
            missing: n,
            fewer,
        };
        self.take(work, cancellation, done);
    }

    fn put(self: &Arc<Self>, work: Put, cancellation: &Arc<Cancellation>, done: Done<Got>) {
        let mut ended = Vec::new();
        let refused = {
            let mut state = self.state.lock();
            let queue = self.clone();
            let cancel = move |id| queue.cancel_put(id);
            let refused = state.puts.push(work, cancellation, cancel, done).err();
            self.flush(&mut state, &mut ended);
            refused
        };
        tell(ended);
        if let Some(done) = refused {
            done(Err(enqueue_cancelled()));
        }
    }

    fn take(self: &Arc<Self>, work: Take, cancellation: &Arc<Cancellation>, done: Done<Got>) {
        let mut ended = Vec::new();
        let refused = {
            let mut state = self.state.lock();
            let queue = self.clone();
            let cancel = move |id| queue.cancel_take(id);
            let refused = state.takes.push(work, cancellation, cancel, done).err();
            self.flush(&mut state, &mut ended);
            refused
        };
        tell(ended);
        if let Some(done) = refused {
            done(Err(dequeue_cancelled()));
        }
    }

    fn cancel_put(&self, id: u64) {
        let mut ended = Vec::new();
        {
            let mut state = self.state.lock();
            if let Some(attempt) = state.puts.remove(id) {
                ended.push(attempt.end(Err(enqueue_cancelled())));
            }
            // Whoever waited behind it may be able to go on.
            self.flush(&mut state, &mut ended);
        }
        tell(ended);
    }

    fn cancel_take(&self, id: u64) {
        let mut ended = Vec::new();
        {
            let mut state = self.state.lock();
            if let Some(attempt) = state.takes.remove(id) {
                ended.push(attempt.end(Err(dequeue_cancelled())));
            }
            self.flush(&mut state, &mut ended);
        }
        tell(ended);
    }

    /// Serves both lists until neither gets on.
    fn flush(&self, state: &mut State, ended: &mut Vec<Ended<Got>>) {
        loop {
            let mut changed = false;
            while let Some(mut work) = state.puts.front_mut().map(std::mem::take) {
                let progress = self.try_put(state, &mut work);
                changed |= !matches!(progress, Progress::None);
                if let Some(front) = state.puts.front_mut() {
                    *front = work;
                }
                let Progress::Complete(outcome) = progress else {
                    break;
                };
                ended.extend(state.puts.pop().map(|a| a.end(outcome)));
            }
            while let Some(mut work) = state.takes.front_mut().map(std::mem::take) {
                let progress = self.try_take(state, &mut work);
                changed |= !matches!(progress, Progress::None);
                if let Some(front) = state.takes.front_mut() {
                    *front = work;
                }
                let Progress::Complete(outcome) = progress else {
                    break;
                };
                ended.extend(state.takes.pop().map(|a| a.end(outcome)));
            }
            if !changed {
                return;
            }
        }
    }

    fn try_put(&self, state: &mut State, work: &mut Put) -> Progress {
        let Put::Elements(elements) = work else {
            if std::mem::replace(&mut state.closed, true) {
                return Progress::Complete(Err(Status::cancelled(format!(
                    "Queue '{}' is already closed.",
                    self.spec.name
                ))));
            }
            return Progress::Complete(Ok(Got::Nothing));
        };
        if state.closed {
            return Progress::Complete(Err(Status::cancelled(format!(
                "{} '{}' is closed.",
                self.spec.kind.base_name(),
                self.spec.name
            ))));
        }
        let mut progress = Progress::None;
        while state.items.len() < self.spec.capacity
            && let Some(element) = elements.pop_front()
        {
            if let Err(refused) = state.items.push(element) {
                let what = format!(
                    "OOM when enqueuing into {} '{}', which holds {} elements of {} bytes",
                    self.spec.kind.base_name(),
                    self.spec.name,
                    state.items.len(),
                    state.items.bytes()
                );
                return Progress::Complete(Err(Status::resource_exhausted(format!(
                    "{what}: {refused}"
                ))));
            }
            progress = Progress::Some;
        }
        if elements.is_empty() {
            return Progress::Complete(Ok(Got::Nothing));
        }
        progress
    }

    fn try_take(&self, state: &mut State, work: &mut Take) -> Progress {
        match work {
            Take::One => {
                if state.closed && state.items.len() == 0 {
                    return self.insufficient(self.spec.kind.base_name(), 1, 0);
                }
                if self.available(state) == 0 {
                    return Progress::None;
                }
                match state.items.pop() {
                    Some(element) => Progress::Complete(Ok(Got::One(element))),
                    None => Progress::None,
                }
            }
            Take::Many {
                got,
                missing,
                fewer,
            } => {
                let ready = match self.spec.kind {
                    Kind::Priority => self.ready_by_priority(state, *missing, *fewer),
                    _ => self.ready_in_order(state, got, missing, *fewer),
                };
                if let Some(progress) = ready {
                    return progress;
                }
                let count = self.available(state).min(*missing);
                for _ in 0..count {
                    got.extend(state.items.pop());
                }
                *missing -= count;
                match (*missing, count) {
                    (0, _) => Progress::Complete(Ok(Got::Many(std::mem::take(got)))),
                    (_, 0) => Progress::None,
                    _ => Progress::Some,
                }
            }
        }
    }

    /// How many elements a dequeue may take now.
    fn available(&self, state: &State) -> usize {
        let kept = if state.closed {
            0
        } else {
            self.spec.min_after_dequeue
        };
        state.items.len().saturating_sub(kept)
    }

    /// Decides what a closed queue with too few elements answers; `None` to go on and take.
    fn ready_in_order(
        &self,
        state: &mut State,
        got: &mut Vec<Element>,
        missing: &mut usize,
        fewer: bool,
    ) -> Option<Progress> {
        let size = state.items.len();
        if !state.closed || size >= *missing {
            return None;
        }
        state.items.restore(std::mem::take(got));
        if fewer && state.items.len() > 0 {
            *missing = state.items.len();
            return None;
        }
        // A later enqueue still has to learn that the queue is closed; it comes first.
        if fewer && !state.puts.is_empty() {
            return Some(Progress::Some);
        }
        Some(self.insufficient(self.spec.kind.name(), *missing, size))
    }

    /// A priority queue gives a batch in one go, else the batch would not be sorted. What it has
    /// given to an attempt for fewer elements before it ran dry is lost, as in TensorFlow.
    fn ready_by_priority(&self, state: &State, missing: usize, fewer: bool) -> Option<Progress> {
        let size = state.items.len();
        if state.closed && (size == 0 || (!fewer && size < missing)) {
            return Some(self.insufficient(self.spec.kind.name(), missing, size));
        }
        (!state.closed && size < missing).then_some(Progress::None)
    }

    fn insufficient(&self, kind: &str, requested: usize, size: usize) -> Progress {
        Progress::Complete(Err(Status::out_of_range(format!(
            "{kind} '{}' is closed and has insufficient elements (requested {requested}, current size {size})",
            self.spec.name
        ))))
    }

    /// The shape each element of component `i` is padded to in a batch of `elements`.
    pub(crate) fn inner_dims(&self, i: usize, elements: &[Element]) -> Vec<usize> {
        let declared = self.spec.shapes.get(i).and_then(PartialShape::dims);
        let declared = declared.unwrap_or_default().iter().enumerate();
        declared
            .map(|(d, size)| {
                size.unwrap_or_else(|| {
                    let parts = elements.iter().filter_map(|e| e.get(i));
                    let sizes = parts.filter_map(|t: &Tensor| t.dims().get(d).copied());
                    sizes.max().unwrap_or(0)
                })
            })
            .collect()
    }
}

fn enqueue_cancelled() -> Status {
    Status::cancelled("Enqueue operation was cancelled")
}

fn dequeue_cancelled() -> Status {
    Status::cancelled("Dequeue operation was cancelled")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, channel};

    fn queue(kind: Kind, capacity: usize) -> Arc<Queue> {
        Arc::new(Queue::new(Spec {
            kind,
            name: "q".into(),
            types: vec![DType::Int32],
            shapes: vec![PartialShape::from_dims([])],
            capacity,
            min_after_dequeue: 0,
            seeds: (0, 0),
        }))
    }

    fn answer() -> (Done<Got>, Receiver<Result<Vec<i32>>>) {
        let (tx, rx) = channel();
        let values = |got| match got {
            Got::Nothing => Vec::new(),
            Got::One(e) => vec![e[0].scalar_value().unwrap()],
            Got::Many(es) => es.iter().map(|e| e[0].scalar_value().unwrap()).collect(),
        };
        (
            Box::new(move |r: Result<Got>| tx.send(r.map(values)).unwrap()),
            rx,
        )
    }

    fn put(q: &Arc<Queue>, c: &Arc<Cancellation>, values: &[i32]) -> Receiver<Result<Vec<i32>>> {
        let (done, rx) = answer();
        let elements = values.iter().map(|&v| vec![Tensor::scalar(v)]).collect();
        q.enqueue(elements, c, done);
        rx
    }

    fn take(q: &Arc<Queue>, c: &Arc<Cancellation>, n: usize) -> Receiver<Result<Vec<i32>>> {
        let (done, rx) = answer();
        q.dequeue_many(n, false, c, done);
        rx
    }

    fn message(rx: &Receiver<Result<Vec<i32>>>) -> String {
        rx.try_recv().unwrap().unwrap_err().message
    }

    #[test]
    fn waiters_are_served_in_order_as_elements_and_room_come() {
        let (q, c) = (queue(Kind::Fifo, 2), Cancellation::new());
        let (first, second) = (take(&q, &c, 2), take(&q, &c, 1));
        let puts = put(&q, &c, &[1]);
        assert!(puts.try_recv().unwrap().is_ok());
        assert!(first.try_recv().is_err() && second.try_recv().is_err());
        let many = put(&q, &c, &[2, 3, 4, 5, 6]);
        assert_eq!(first.try_recv().unwrap().unwrap(), [1, 2]);
        assert_eq!(second.try_recv().unwrap().unwrap(), [3]);
        assert!(many.try_recv().is_err());
        assert_eq!(take(&q, &c, 1).try_recv().unwrap().unwrap(), [4]);
        assert!(many.try_recv().unwrap().is_ok());
        assert_eq!(q.len(), 2);
    }

    #[test]
    fn a_close_waits_for_earlier_enqueues_and_refuses_later_ones() {
        let (q, c) = (queue(Kind::Fifo, 1), Cancellation::new());
        let early = put(&q, &c, &[1, 2]);
        let (done, closed) = answer();
        q.close(&c, done);
        let late = put(&q, &c, &[3]);
        assert!(!q.is_closed() && closed.try_recv().is_err());
        assert_eq!(take(&q, &c, 1).try_recv().unwrap().unwrap(), [1]);
        assert!(early.try_recv().unwrap().is_ok() && closed.try_recv().unwrap().is_ok());
        assert_eq!(message(&late), "FIFOQueue 'q' is closed.");
        let short = take(&q, &c, 2);
        assert_eq!(
            message(&short),
            "FIFOQueue 'q' is closed and has insufficient elements (requested 2, current size 1)"
        );
        let (done, rx) = answer();
        q.dequeue_many(5, true, &c, done);
        assert_eq!(rx.try_recv().unwrap().unwrap(), [2]);
        let (done, again) = answer();
        q.close(&c, done);
        assert_eq!(message(&again), "Queue 'q' is already closed.");
    }

    #[test]
    fn closing_gives_back_what_an_unfinished_batch_had_taken() {
        for kind in [Kind::Fifo, Kind::Padding, Kind::Shuffle] {
            let (q, c) = (queue(kind, 9), Cancellation::new());
            let batch = take(&q, &c, 3);
            put(&q, &c, &[1, 2]);
            assert_eq!(q.len(), 0);
            q.close(&c, answer().0);
            let wanted = "is closed and has insufficient elements (requested 1, current size 0)";
            assert!(message(&batch).ends_with(wanted));
            assert_eq!(q.len(), 2);
        }
    }

    #[test]
    fn a_cancelled_step_leaves_its_place_to_the_next() {
        let (q, mine, other) = (
            queue(Kind::Fifo, 1),
            Cancellation::new(),
            Cancellation::new(),
        );
        let (a, b) = (take(&q, &mine, 2), take(&q, &other, 1));
        mine.cancel(Status::cancelled("stop"));
        assert_eq!(message(&a), "Dequeue operation was cancelled");
        put(&q, &other, &[7]);
        assert_eq!(b.try_recv().unwrap().unwrap(), [7]);
        let late = take(&q, &mine, 1);
        assert_eq!(message(&late), "Dequeue operation was cancelled");
        put(&q, &other, &[1]);
        let mine = Cancellation::new();
        let full = put(&q, &mine, &[2]);
        mine.cancel(Status::cancelled("stop"));
        assert_eq!(message(&full), "Enqueue operation was cancelled");
        assert_eq!(q.len(), 1);
    }

    #[test]
    fn closing_with_cancellation_fails_the_enqueues_that_wait() {
        let (q, c) = (queue(Kind::Shuffle, 1), Cancellation::new());
        let waiting = put(&q, &c, &[1, 2]);
        q.close_and_cancel();
        assert_eq!(message(&waiting), "Enqueue operation was cancelled");
        assert_eq!(take(&q, &c, 1).try_recv().unwrap().unwrap(), [1]);
        let (done, rx) = answer();
        q.dequeue(&c, done);
        assert_eq!(
            message(&rx),
            "RandomShuffleQueue 'q' is closed and has insufficient elements (requested 1, current size 0)"
        );
    }

    #[test]
    fn a_priority_queue_waits_for_a_whole_batch() {
        let (q, c) = (queue(Kind::Priority, 9), Cancellation::new());
        let item = |p: i64, v: i32| VecDeque::from([vec![Tensor::scalar(p), Tensor::scalar(v)]]);
        let (tx, rx) = channel();
        let done = move |r: Result<Got>| match r.unwrap() {
            Got::Many(es) => tx
                .send(
                    es.iter()
                        .map(|e| e[1].scalar_value::<i32>().unwrap())
                        .collect(),
                )
                .unwrap(),
            _ => tx.send(Vec::new()).unwrap(),
        };
        q.dequeue_many(2, false, &c, Box::new(done));
        q.enqueue(item(5, 50), &c, answer().0);
        assert_eq!(q.len(), 1);
        q.enqueue(item(1, 10), &c, answer().0);
        assert_eq!(rx.try_recv().unwrap(), [10, 50]);
    }
}
