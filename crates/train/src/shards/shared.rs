//! The ledger that all workers share: a string variable of the graph, beside the model and saved with it.
//!
//! Nobody owns the ledger. Whoever wants something reads it, works out what follows with the pure
//! machine, and swaps the old text for the new one in a step that holds a lock on the variable's task:
//! if another was quicker, it begins again. So there is no process whose loss stops the others, no
//! message that TensorFlow's protocol does not have, and a parameter server that comes back
//! resumes the ledger of the same checkpoint as the model's.
//!
//! A ledger that goes back to a checkpoint knows less than its readers, and so does the model. Whoever is
//! about to restore gives the ledger another era first ([`Era`]); what a reader was given in an
//! earlier one, it can no longer say is done.

use super::ledger::{Answer, Done, Holder, Ledger};
use super::portion::{Division, Portion};
use super::watch::Watch;
use crate::MonitoredSession;
use downpour_build::{DType, Graph, Init, Operation, Output, Result, Status, Variable};
use downpour_client::Session;
use parking_lot::Mutex;
use std::hash::{BuildHasher, Hasher};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How long a worker that finds nothing to do waits before it asks again.
const PAUSE: Duration = Duration::from_millis(20);

/// Portions of data for all workers of a cluster.
///
/// ```
/// use downpour::train::Supervision;
/// use downpour::train::shards::{Division, Shards};
/// use downpour::{Graph, Server, ServerConfig};
/// let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let shards = Shards::new(&g, "shards", Division::new(100, 30).epochs(2));
/// let mut session = Supervision::new(&server, &g).open()?;
/// let mut reader = shards.reader(0);
/// let mut seen = [0; 100];
/// while let Some(portion) = reader.next(&mut session)? {
///     portion.positions(100, 7).for_each(|i| seen[i as usize] += 1);
///     reader.done(&session.raw()?, &portion)?;
/// }
/// assert_eq!(seen, [2; 100]);
/// assert_eq!(shards.ledger(&*session.raw()?)?.epochs_done(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Shards {
    division: Division,
    lease: Duration,
    record: Variable,
    era: Variable,
    expected: Output,
    expected_era: Output,
    wanted: Output,
    swapped: Output,
    swap: Operation,
}

impl Shards {
    /// Builds the ledger of this name, on the device that the scopes give to a variable. All workers
    /// must divide the data in the same way.
    pub fn new(graph: &Graph, name: &str, division: Division) -> Shards {
        let first = Ledger::new(division.clone()).to_text();
        let record = graph.variable(name).absolute().init(Init::value(first));
        let record = record.dtype(DType::String).trainable(false).build();
        let home = record.handle().operation();
        let place = |what: &str, dtype| graph.placeholder(&format!("{name}_{what}"), dtype, ());
        let expected = place("expected", DType::String);
        let wanted = place("wanted", DType::String);
        let expected_era = place("expected_era", DType::Int64);
        let next_era = place("next_era", DType::Int64);
        let locked = |body: &dyn Fn() -> (Output, Operation)| {
            let mutex = graph
                .op("MutexV2")
                .attr("shared_name", format!("{name}/lock").as_str());
            let lock = graph.op("MutexLock").input(&mutex.output()).output();
            graph.with_control(&[lock.operation()], || {
                let (value, done) = body();
                let release = || graph.op("ConsumeMutexLock").input(&lock).build();
                (value, graph.with_control(&[done], release))
            })
        };
        let (era, (swapped, swap), (_, enter)) = graph.with_colocation(&home, || {
            let era = graph.variable(&format!("{name}_era")).absolute();
            let era = era.init(Init::value(0i64)).trainable(false).saved(false);
            let era = era.build();
            let swap = locked(&|| {
                let now = record.read();
                let is_now = era.read().equal(&expected_era);
                let swapped = now.equal(&expected).logical_and(&is_now);
                let assigned = record.assign(&swapped.select(&wanted, &now));
                (swapped, assigned)
            });
            // Under the lock: a swap of the last era is over before the ledger changes.
            let enter = locked(&|| (next_era.clone(), era.assign(&next_era)));
            (era, swap, enter)
        });
        graph.attach(Era { enter, next_era });
        Shards {
            division,
            lease: Duration::from_secs(10),
            record,
            era,
            expected,
            expected_era,
            wanted,
            swapped,
            swap,
        }
    }

    /// After how long a silent worker's portions go to others; 10 s if not given.
    pub fn lease(mut self, lease: Duration) -> Shards {
        self.lease = lease;
        self
    }

    /// The part of one worker, in a life of its own.
    pub fn reader(&self, worker: usize) -> Reader {
        Reader {
            shards: self.clone(),
            holder: Holder {
                worker: worker as u64,
                life: life(),
            },
            watch: Watch::new(self.lease),
            hand: Vec::new(),
            era: None,
            resets: 0,
            said: None,
            renewing: None,
        }
    }

    /// How the data is divided.
    pub fn division(&self) -> &Division {
        &self.division
    }

    /// The ledger as it is now.
    pub fn ledger(&self, session: &Session) -> Result<Ledger> {
        Ok(self.read(session)?.1)
    }

    /// The text, what it says, and its era.
    fn read(&self, session: &Session) -> Result<(String, Ledger, i64)> {
        let step = session.step();
        let [value, era] = step.fetch_all([self.record.value(), self.era.value()])?;
        let broken = || Status::data_loss(format!("{} holds no text", self.record.name()));
        let text = value.as_strings().ok().and_then(<[_]>::first);
        let text = text.and_then(|t| std::str::from_utf8(t).ok());
        let text = text.ok_or_else(broken)?.to_owned();
        let ledger = Ledger::from_text(&text, self.division.clone())?;
        let era = era.scalar_value::<i64>();
        Ok((
            text,
            ledger,
            era.map_err(|e| Status::internal(e.to_string()))?,
        ))
    }

    /// Changes the ledger, given with their era, as if nobody else did at the same time. What came of
    /// it, and in which era.
    pub(crate) fn change<T>(
        &self,
        session: &Session,
        mut change: impl FnMut(&mut Ledger, i64) -> T,
    ) -> Result<(T, i64)> {
        loop {
            let (text, mut ledger, era) = self.read(session)?;
            let outcome = change(&mut ledger, era);
            let wanted = ledger.to_text();
            if wanted == text {
                return Ok((outcome, era));
            }
            let step = session.step().feed(&self.expected, text);
            let step = step.feed(&self.expected_era, era);
            let step = step.feed(&self.wanted, wanted).target(&self.swap);
            let swapped = step.fetch(&self.swapped)?;
            if swapped.scalar_value::<bool>().unwrap_or(false) {
                return Ok((outcome, era));
            }
            // Another was quicker: it got on, and so shall we.
        }
    }
}

/// How ledgers are told that they will be others than their readers know.
pub(crate) struct Era {
    enter: Operation,
    next_era: Output,
}

impl Era {
    /// Begins another era of all ledgers of a graph: what readers know of the last one counts no more.
    pub(crate) fn begin(graph: &Graph, session: &Session) -> Result<()> {
        for era in graph.attached::<Era>() {
            let number = life().cast_signed();
            let step = session.step().feed(&era.next_era, number);
            step.target(&era.enter).run()?;
        }
        Ok(())
    }
}

/// A number that no other life of a worker has.
pub(crate) fn life() -> u64 {
    // Every `RandomState` of the standard library has keys of its own. Positive as an int64 too.
    let random = std::collections::hash_map::RandomState::new();
    (random.build_hasher().finish() >> 1).max(1)
}

/// One worker's view of a shared ledger. A thread says beside it that it lives, until it is dropped.
///
/// [`Shards::reader`] makes it.
///
/// ```
/// use downpour::train::shards::{Answer, Division, Reader, Shards};
/// use downpour::{Graph, Server, ServerConfig, Session};
/// use std::sync::Arc;
/// let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let shards = Shards::new(&g, "shards", Division::new(20, 10).epochs(1));
/// let session = Arc::new(Session::new(&server, &g)?);
/// session.run(&g.initialize_variables())?;
/// let (mut one, mut two): (Reader, Reader) = (shards.reader(0), shards.reader(1));
/// assert!(matches!(one.ask(&session)?, Answer::Work(p) if p.number == 0));
/// assert!(matches!(two.ask(&session)?, Answer::Work(p) if p.number == 1));
/// // What one that leaves held goes to the others.
/// one.leave(&session)?;
/// assert!(matches!(two.ask(&session)?, Answer::Work(p) if p.number == 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Reader {
    shards: Shards,
    holder: Holder,
    watch: Watch<Holder>,
    /// Portions that it knows that it holds, since the ledger had this era.
    hand: Vec<u64>,
    era: Option<i64>,
    /// How often the ledger went back to what it was before.
    resets: u64,
    /// The portion that it said was done, while it does not know whether that was heard.
    said: Option<u64>,
    renewing: Option<Renewing>,
}

impl Reader {
    /// Asks for work, without waiting for any. What silent workers held is taken from them.
    pub fn ask(&mut self, session: &Arc<Session>) -> Result<Answer> {
        self.renew_on(session)?;
        let (holder, watch) = (self.holder, &mut self.watch);
        let (hand, known) = (&self.hand, self.era);
        let (answer, era) = self.shards.change(session, |ledger, era| {
            watch.look(ledger.holders(), Instant::now());
            for silent in watch.silent().into_iter().filter(|h| *h != holder) {
                ledger.expire(silent);
            }
            // Given out in a step whose answer was lost with its session, or in a ledger that is back.
            let mut own = ledger.held_by(holder);
            match own.find(|p| known != Some(era) || !hand.contains(&p.sequence)) {
                Some(portion) => Answer::Work(portion),
                None => {
                    drop(own);
                    ledger.lease(holder)
                }
            }
        })?;
        self.enter(era);
        if let Answer::Work(portion) = answer {
            self.hand.push(portion.sequence);
        }
        Ok(answer)
    }

    /// Says that a portion is done. `Never` if the ledger has gone back to a checkpoint since it was
    /// given out, and the model with them.
    pub fn done(&mut self, session: &Arc<Session>, portion: &Portion) -> Result<Done> {
        let (holder, sequence, known) = (self.holder, portion.sequence, self.era);
        let said = self.said.replace(sequence) == Some(sequence);
        let (done, era) = self.shards.change(session, |ledger, era| {
            if known != Some(era) {
                return Done::Never;
            }
            match said && !ledger.is_open(sequence) {
                // It was said before, in a step whose answer was lost: not to be counted twice.
                true => Done::First,
                false => ledger.done(holder, sequence),
            }
        })?;
        self.said = None;
        self.enter(era);
        self.hand.retain(|held| *held != sequence);
        Ok(done)
    }

    /// Gives back what it holds: others may have it at once.
    pub fn leave(&mut self, session: &Arc<Session>) -> Result<()> {
        let holder = self.holder;
        let ((), era) = self
            .shards
            .change(session, |ledger, _| ledger.expire(holder))?;
        self.enter(era);
        self.hand.clear();
        Ok(())
    }

    /// How often the ledger went back to a checkpoint, or began anew, under this reader: what it was
    /// given before is to be done again, by whomever the ledger says.
    pub fn resets(&self) -> u64 {
        self.resets
    }

    fn enter(&mut self, era: i64) {
        if self.era.replace(era).is_some_and(|known| known != era) {
            self.hand.clear();
            self.said = None;
            self.resets += 1;
        }
    }

    /// The next portion, waited for while others work on all that is left. None when all is done,
    /// or training is to stop.
    pub fn next(&mut self, session: &mut MonitoredSession) -> Result<Option<Portion>> {
        loop {
            match session.on_session(|session| self.ask(session))? {
                Answer::Work(portion) => return Ok(Some(portion)),
                Answer::Over => return Ok(None),
                Answer::Wait if session.should_stop() => return Ok(None),
                Answer::Wait => {
                    let pause = PAUSE.min(self.watch.interval());
                    session.coordinator().wait_for_stop(pause);
                }
            }
        }
    }

    /// Who it is in the ledger.
    pub fn holder(&self) -> Holder {
        self.holder
    }

    /// The data's ledger.
    pub fn shards(&self) -> &Shards {
        &self.shards
    }

    fn renew_on(&mut self, session: &Arc<Session>) -> Result<()> {
        if self.renewing.as_ref().is_none_or(|r| !r.is_on(session)) {
            self.renewing = Some(Renewing::start(session, &self.shards, self.holder)?);
        }
        Ok(())
    }
}

/// A worker that renews its leases until this is dropped, or its session is lost.
struct Renewing {
    session: Weak<Session>,
    /// The thread's reason to go on.
    alive: Arc<Mutex<bool>>,
    thread: std::thread::Thread,
}

impl Renewing {
    fn start(session: &Arc<Session>, shards: &Shards, holder: Holder) -> Result<Renewing> {
        let alive = Arc::new(Mutex::new(true));
        let (weak, shards, go_on) = (Arc::downgrade(session), shards.clone(), alive.clone());
        let thread = std::thread::Builder::new().name("shard-lease".to_owned());
        let thread = thread.spawn(move || {
            loop {
                std::thread::park_timeout(shards.lease / 4);
                let Some(session) = weak.upgrade().filter(|_| *go_on.lock()) else {
                    return;
                };
                let renewed = shards.change(&session, |ledger, _| ledger.renew(holder));
                // The session is lost: the next one renews anew.
                if renewed.is_err() {
                    return;
                }
            }
        });
        let thread = thread.map_err(|e| Status::unavailable(e.to_string()))?;
        Ok(Renewing {
            session: Arc::downgrade(session),
            alive,
            thread: thread.thread().clone(),
        })
    }

    fn is_on(&self, session: &Arc<Session>) -> bool {
        std::ptr::eq(self.session.as_ptr(), Arc::as_ptr(session))
    }
}

impl Drop for Renewing {
    fn drop(&mut self) {
        *self.alive.lock() = false;
        self.thread.unpark();
    }
}
