//! Threads that fill queues beside training. They belong to a graph: every supervised session of
//! it starts them, and they end with it.
//!
//! Invariant: a runner knows its operations by name, so that a graph that carries runners does not
//! keep itself alive through them.

use crate::coordinator::Coordinator;
use crate::queue::Queue;
use downpour_build::{Code, Graph, Operation, Output, Result, Status, Tensor};
use downpour_client::{Run, Session};
use downpour_formats::meta_graph::QueueRunnerDef;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tracing::{debug, info};

/// How often a thread that waits for its predecessor looks whether it is time to stop.
const LOOK: Duration = Duration::from_millis(50);

/// What fills a queue: operations that are run again and again, each on a thread of its own.
///
/// ```
/// use downpour::train::{Queue, QueueRunner, Supervision};
/// use downpour::{DType, Graph, Server, ServerConfig};
/// let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let queue = Queue::shuffled(&g, "draws", 16, 4, 1).component(DType::Float, ()).build();
/// let draw = || queue.enqueue(&[g.constant(0.5f32)]);
/// QueueRunner::new(&queue, &[draw(), draw()]).register();
/// let mean = queue.dequeue_many(10)[0].mean(());
/// let mut session = Supervision::new(&server, &g).open()?;
/// assert_eq!(session.step().fetch(&mean)?.scalar_value::<f32>()?, 0.5);
/// session.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct QueueRunner {
    graph: Graph,
    parts: Parts,
}

/// What is kept with the graph.
struct Parts {
    queue: String,
    enqueue: Vec<String>,
    close: String,
    cancel: String,
    /// Tells whether the queue is closed; a queue of TensorFlow's first kind has none.
    is_closed: Option<String>,
    closed_by: Vec<Code>,
    source: Option<Source>,
}

/// What a function of the program brings.
struct Source {
    /// Placeholders of an element.
    fed: Vec<String>,
    state: Mutex<Bringing>,
}

struct Bringing {
    bring: Box<dyn FnMut() -> Result<Vec<Tensor>> + Send>,
    /// What was brought and is not known to be in the queue.
    unused: Option<Vec<Tensor>>,
}

impl QueueRunner {
    /// Fills a queue by these operations. When each has met the end of its data, the queue is
    /// closed.
    pub fn new(queue: &Queue, enqueue: &[Operation]) -> QueueRunner {
        let graph = queue.handle().graph().clone();
        let name = queue.handle().operation().name();
        let (close, cancel, is_closed) = graph.without_control(|| {
            graph.with_scope(&format!("{name}_runner"), || {
                (queue.close(), queue.cancel(), queue.is_closed())
            })
        });
        QueueRunner {
            graph,
            parts: Parts {
                queue: name,
                enqueue: enqueue.iter().map(Operation::name).collect(),
                close: close.name(),
                cancel: cancel.name(),
                is_closed: Some(is_closed.name()),
                closed_by: vec![Code::OutOfRange],
                source: None,
            },
        }
    }

    /// Errors that mean that the data has ended, instead of `OUT_OF_RANGE` alone.
    pub fn closed_by(mut self, codes: &[Code]) -> QueueRunner {
        self.parts.closed_by = codes.to_vec();
        self
    }

    /// Feeds each of the runner's steps what a function brings.
    pub fn feeding(
        mut self,
        fed: &[Output],
        bring: impl FnMut() -> Result<Vec<Tensor>> + Send + 'static,
    ) -> QueueRunner {
        self.parts.source = Some(Source {
            fed: fed.iter().map(Output::name).collect(),
            state: Mutex::new(Bringing {
                bring: Box::new(bring),
                unused: None,
            }),
        });
        self
    }

    /// Gives the runner to its graph, whose supervised sessions start it.
    pub fn register(self) {
        self.graph.attach(Registered(Arc::new(self.parts)));
    }
}

/// A runner that its graph carries.
#[derive(Clone)]
pub(crate) struct Registered(Arc<Parts>);

impl Registered {
    /// All runners of a graph.
    pub(crate) fn of(graph: &Graph) -> Vec<Registered> {
        let all = graph.attached::<Registered>().into_iter();
        all.map(|runner| (*runner).clone()).collect()
    }

    /// As meta graphs keep it, unless a function of this program feeds it.
    pub(crate) fn describe(&self) -> Option<QueueRunnerDef> {
        let parts = &*self.0;
        parts.source.is_none().then(|| QueueRunnerDef {
            queue: parts.queue.clone(),
            enqueue: parts.enqueue.clone(),
            close: parts.close.clone(),
            cancel: parts.cancel.clone(),
            closed_by: parts.closed_by.clone(),
        })
    }

    /// Gives a runner that a meta graph kept to the graph it was imported to, where names begin
    /// with `prefix`.
    pub(crate) fn import(graph: &Graph, def: QueueRunnerDef, prefix: &str) -> Result<()> {
        let find = |name: &str| graph.operation(&format!("{prefix}{name}"));
        let queue = find(def.queue.trim_end_matches(":0"))?;
        let enqueue = def.enqueue.iter().map(|name| find(name));
        let enqueue: Vec<Operation> = enqueue.collect::<Result<_>>()?;
        let is_closed = queue.op().ends_with("V2").then(|| {
            graph.without_control(|| {
                let ask = graph.op("QueueIsClosedV2").input(&queue.output(0));
                graph.with_colocation(&queue, || ask.output()).name()
            })
        });
        graph.attach(Registered(Arc::new(Parts {
            queue: queue.name(),
            enqueue: enqueue.iter().map(Operation::name).collect(),
            close: find(&def.close)?.name(),
            cancel: find(&def.cancel)?.name(),
            is_closed,
            closed_by: match def.closed_by.is_empty() {
                true => vec![Code::OutOfRange],
                false => def.closed_by,
            },
            source: None,
        })));
        Ok(())
    }

    /// Starts a thread for each operation.
    pub(crate) fn start(&self, session: &Arc<Session>, threads: &Coordinator) -> Result<()> {
        let left = Arc::new(AtomicUsize::new(self.0.enqueue.len()));
        for name in &self.0.enqueue {
            let operation = session.graph().operation(name)?;
            let (parts, session, left) = (self.0.clone(), session.clone(), left.clone());
            threads.spawn(&format!("fill {}", self.0.queue), move |threads| {
                parts.fill(&session, &operation, threads, &left)
            })?;
        }
        Ok(())
    }

    /// Closes the queue, also to what waits to get in.
    pub(crate) fn cancel(&self, session: &Session) {
        let cancel = session.graph().operation(&self.0.cancel);
        if let Err(why) = cancel.and_then(|cancel| session.run(&cancel)) {
            debug!(%why, queue = self.0.queue, "the queue could not be closed");
        }
    }
}

impl Parts {
    /// Fills the queue until the data ends, or it is time to stop.
    fn fill(
        &self,
        session: &Session,
        enqueue: &Operation,
        threads: &Coordinator,
        left: &AtomicUsize,
    ) -> Result<()> {
        while !threads.should_stop() {
            match self.once(session, enqueue, threads) {
                Ok(()) => {}
                // Whatever it is, it comes of the stop.
                Err(_) if threads.should_stop() => return Ok(()),
                Err(why) if self.is_end(session, &why) => {
                    if left.fetch_sub(1, Ordering::AcqRel) == 1 {
                        info!(queue = self.queue, "the data has ended");
                        session.run(&session.graph().operation(&self.close)?)?;
                    }
                    return Ok(());
                }
                Err(why) => return Err(why),
            }
        }
        Ok(())
    }

    /// Whether an error means that nothing more is to be put in.
    fn is_end(&self, session: &Session, why: &Status) -> bool {
        if self.closed_by.contains(&why.code) {
            return true;
        }
        // A queue that outlived a lost session may be closed already.
        let is_closed = || -> Result<bool> {
            let Some(is_closed) = &self.is_closed else {
                return Ok(false);
            };
            let closed = session.fetch(&session.graph().output(is_closed)?)?;
            closed
                .scalar_value::<bool>()
                .map_err(|e| Status::internal(e.to_string()))
        };
        why.code == Code::Cancelled && is_closed().unwrap_or(false)
    }

    fn once(&self, session: &Session, enqueue: &Operation, threads: &Coordinator) -> Result<()> {
        let Some(source) = &self.source else {
            return session.run(enqueue);
        };
        // The thread of a lost session may still hold the source.
        let mut state = loop {
            match source.state.try_lock_for(LOOK) {
                Some(state) => break state,
                None if threads.should_stop() => return Ok(()),
                None => {}
            }
        };
        let element = match state.unused.take() {
            Some(element) => element,
            None => (state.bring)()?,
        };
        if element.len() != source.fed.len() {
            return Err(Status::invalid_argument(format!(
                "an element of the queue '{}' has {} tensors, but {} were brought",
                self.queue,
                source.fed.len(),
                element.len()
            )));
        }
        let mut run = Run::new();
        run.target(enqueue);
        for (name, value) in source.fed.iter().zip(&element) {
            run.feed(&session.graph().output(name)?, value);
        }
        state.unused = Some(element);
        session.execute(&run)?;
        state.unused = None;
        Ok(())
    }
}
