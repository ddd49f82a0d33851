//! One replica: computes with its copy of the parameters while the last push and the next fetch are
//! under way.
//!
//! Invariant: gradients that were handed to a push are never pushed again. Those that are lost with a
//! session are counted ([`Replica::losses`]), so that their data can be given out again.

use super::background_queue::BackgroundQueue;
use super::gradient_buffer::{GradientBuffer, add_scaled, fetch_gradients};
use super::parts::{Parts, Way};
use super::waiting::{Waiting, expelled, has_turn, is_expelled};
use super::{DownpourSgd, Here};
use crate::heartbeat::Heartbeat;
use crate::hooks::number;
use crate::shards::life;
use crate::staleness::table::{Member, Table};
use crate::staleness::{Bound, Read, View};
use crate::{Coordinator, MonitoredSession};
use downpour_build::{Output, Result, Status, Tensor};
use downpour_client::{Run, Session};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::info;

/// How often hooks see a step: what they fetch is on parameter servers, which computing needs not.
const ATTEND: Duration = Duration::from_millis(20);

/// A step that a replica has taken.
///
/// [`Replica::step`] returns it.
#[derive(Clone, Debug, PartialEq)]
pub struct Taken {
    /// The loss.
    pub loss: f64,
    /// Which model it was computed with.
    pub read: Read,
}

/// What computes, fetches and pushes.
///
/// [`DownpourTraining::replica`](super::DownpourTraining::replica) makes it.
///
/// ```
/// use downpour::train::{DownpourSgd, GradientDescent, Replica, Supervision, global_step};
/// use downpour::{Graph, Init, Server, ServerConfig};
/// let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let w = g.variable("w").init(Init::value(8.0f32)).build();
/// let settings = DownpourSgd::new(1, 0).fetch_every(3).push_every(3);
/// let training = settings.minimize(&GradientDescent::new(0.25), &w.square(), &global_step(&g))?;
/// let mut session = Supervision::new(&server, &g).open()?;
/// let mut replica: Replica = training.replica();
/// for _ in 0..3 {
///     // The same model each time: 8², with the gradient 16.
///     assert_eq!(replica.step(&mut session, &[])?.loss, 64.0);
/// }
/// replica.flush(&mut session)?;
/// assert_eq!(session.raw()?.fetch(&w)?.scalar_value::<f32>()?, 8.0 - 0.25 * (3.0 * 16.0));
/// assert_eq!((replica.steps(), replica.acknowledged(), session.global_step()?), (3, 3, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Replica {
    settings: DownpourSgd,
    parts: Arc<Parts>,
    here: Here,
    live: Option<Live>,
    gradients: GradientBuffer,
    waiting: Waiting,
    /// Its clock when it last took part.
    clock: u64,
    steps: u64,
    acknowledged: u64,
    losses: u64,
    attended: Option<Instant>,
}

/// A replica on one session.
struct Live {
    session: Arc<Session>,
    member: Member,
    _heartbeat: Heartbeat,
    fetcher: BackgroundQueue<(), (View, Vec<Tensor>)>,
    /// Takes a push and how many steps are pushed after it.
    pusher: BackgroundQueue<(Run, u64), u64>,
    /// Whether it takes part, or waits to begin.
    has_begun: bool,
    /// The table and the parameters as last fetched, and for how many steps they were used.
    model: Option<(View, Vec<Tensor>)>,
    age: u64,
}

impl Live {
    fn fetch_now(&mut self) -> Result<()> {
        if !self.fetcher.has_pending() {
            self.fetcher.post(())?;
        }
        self.model = Some(self.fetcher.take()?);
        self.age = 0;
        Ok(())
    }
}

impl Replica {
    pub(super) fn new(settings: &DownpourSgd, parts: &Arc<Parts>, here: &Here) -> Replica {
        Replica {
            waiting: Waiting::new(settings.lease),
            settings: settings.clone(),
            parts: parts.clone(),
            here: here.clone(),
            live: None,
            gradients: GradientBuffer::default(),
            clock: 0,
            steps: 0,
            acknowledged: 0,
            losses: 0,
            attended: None,
        }
    }

    /// Takes a step: computes the gradients of what is fed, and accrues them. Waits for its turn in a
    /// warm start, and for slower replicas where a bound says so; `OUT_OF_RANGE` if training is
    /// stopped meanwhile. When a task is lost, goes on with a new session.
    pub fn step(
        &mut self,
        session: &mut MonitoredSession,
        feeds: &[(&Output, Tensor)],
    ) -> Result<Taken> {
        self.attend(session, feeds)?;
        let stop = session.coordinator().clone();
        session.on_session(|session| {
            loop {
                match self.attempt(session, feeds, &stop) {
                    Err(e) if is_expelled(&e) => {
                        info!("this replica was given up by the others: it begins anew");
                        self.drop_live();
                    }
                    outcome => return outcome,
                }
            }
        })
    }

    /// Pushes what is accrued, and waits until the parameter servers have all of it.
    pub fn flush(&mut self, session: &mut MonitoredSession) -> Result<()> {
        session.on_session(|session| {
            self.meet(session)?;
            match self.flush_live() {
                Err(e) if is_expelled(&e) => {
                    self.drop_live();
                    Ok(())
                }
                outcome => outcome,
            }
        })
    }

    /// How many steps it has taken.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// How many of its first steps are with the parameter servers, or were lost.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// How often gradients were lost, because a task was lost or others had given this replica up.
    pub fn losses(&self) -> u64 {
        self.losses
    }

    /// Lets hooks see a step now and then, with the same feeds.
    fn attend(
        &mut self,
        session: &mut MonitoredSession,
        feeds: &[(&Output, Tensor)],
    ) -> Result<()> {
        if self.attended.is_none_or(|at| at.elapsed() >= ATTEND) {
            let step = session.step();
            let step = feeds
                .iter()
                .fold(step, |step, (at, value)| step.feed(at, value));
            step.fetch(&self.parts.version)?;
            self.attended = Some(Instant::now());
        }
        Ok(())
    }

    fn attempt(
        &mut self,
        session: &Arc<Session>,
        feeds: &[(&Output, Tensor)],
        stop: &Coordinator,
    ) -> Result<Taken> {
        self.meet(session)?;
        self.reap(false)?;
        loop {
            self.begin(stop)?;
            if self.refresh(stop)? {
                return self.compute(feeds);
            }
        }
    }

    /// Makes itself known on a session, if it is new.
    fn meet(&mut self, session: &Arc<Session>) -> Result<()> {
        if self
            .live
            .as_ref()
            .is_some_and(|live| Arc::ptr_eq(&live.session, session))
        {
            return Ok(());
        }
        self.drop_live();
        let member = Member {
            replica: self.settings.replica,
            life: life().cast_signed(),
        };
        self.parts.table.enter(session, member)?;
        *self.here.lock() = Some(member);
        let every = self.settings.lease / 4;
        let fetcher = {
            let (session, parts) = (session.clone(), self.parts.clone());
            BackgroundQueue::start("replica-fetch", move |()| fetch(&session, &parts))?
        };
        let pushing = session.clone();
        let pusher = BackgroundQueue::start("replica-push", move |(run, steps): (Run, u64)| {
            pushing.execute(&run).map(|_| steps)
        })?;
        let heartbeat = {
            let (session, parts) = (Arc::downgrade(session), self.parts.clone());
            Heartbeat::start("replica-beat", every, every, move || {
                let gone = || Status::cancelled("the session is closed");
                let session = session.upgrade().ok_or_else(gone)?;
                parts.table.beat(&session, member.replica).map(drop)
            })?
        };
        self.live = Some(Live {
            session: session.clone(),
            member,
            _heartbeat: heartbeat,
            fetcher,
            pusher,
            has_begun: false,
            model: None,
            age: 0,
        });
        Ok(())
    }

    /// Ends a life; gradients that are not known to have arrived are lost.
    fn drop_live(&mut self) {
        let lost = self
            .live
            .take()
            .is_some_and(|live| live.pusher.has_pending());
        if lost || self.gradients.steps > 0 {
            self.losses += 1;
        }
        self.acknowledged = self.steps;
        self.gradients.clear();
    }

    fn live(&mut self) -> Result<&mut Live> {
        let missing = || Status::internal("a replica without a session");
        self.live.as_mut().ok_or_else(missing)
    }

    /// Waits for its turn and begins, unless it has.
    fn begin(&mut self, stop: &Coordinator) -> Result<()> {
        let missing = || Status::internal("a replica without a session");
        let live = self.live.as_mut().ok_or_else(missing)?;
        if live.has_begun {
            return Ok(());
        }
        let (parts, settings, member) = (&self.parts, &self.settings, live.member);
        let turn = |view: &View| has_turn(settings, view);
        self.waiting
            .until(&live.session, parts, member, stop, turn)?;
        self.clock = parts.table.start(&live.session, member, self.clock)?;
        live.has_begun = true;
        Ok(())
    }

    /// Sees to it that the parameters are young enough. If it is no longer this replica's turn, it
    /// stops taking part instead.
    fn refresh(&mut self, stop: &Coordinator) -> Result<bool> {
        let (n_fetch, clock, bound) = (self.settings.n_fetch, self.clock, self.settings.bound);
        let live = self.live()?;
        if live.model.is_none() || live.age >= n_fetch {
            live.fetch_now()?;
        }
        let too_old = |live: &Live| match &live.model {
            Some((view, _)) => !bound.allows(clock, view.slowest()),
            None => true,
        };
        let mut waits = too_old(live);
        while waits {
            self.flush_live()?;
            let missing = || Status::internal("a replica without a session");
            let live = self.live.as_mut().ok_or_else(missing)?;
            let is_ready = |view: &View| bound.allows(clock, view.slowest());
            let (session, member) = (live.session.clone(), live.member);
            self.waiting
                .until(&session, &self.parts, member, stop, is_ready)?;
            if live.fetcher.has_pending() {
                // Asked for before the wait.
                live.fetcher.take()?;
            }
            live.fetch_now()?;
            waits = too_old(live);
        }
        let turn = self
            .view()
            .is_none_or(|view| has_turn(&self.settings, view));
        if !turn {
            self.flush_live()?;
        }
        let parts = self.parts.clone();
        let prefetches = self.prefetches();
        let live = self.live()?;
        let member = live.member;
        if let Some((view, _)) = &live.model
            && bound.is_limited()
            && !view.has(member.replica, member.life)
        {
            return Err(expelled());
        }
        if !turn {
            parts.table.enter(&live.session, member)?;
            (live.has_begun, live.model) = (false, None);
            return Ok(false);
        }
        if prefetches && live.age + 1 >= n_fetch && !live.fetcher.has_pending() {
            live.fetcher.post(())?;
        }
        Ok(true)
    }

    fn view(&self) -> Option<&View> {
        let model = self.live.as_ref()?.model.as_ref();
        model.map(|(view, _)| view)
    }

    /// Whether what is asked for now will be young enough when it is needed.
    fn prefetches(&self) -> bool {
        let ahead = self.settings.n_fetch + 2 * self.settings.n_push;
        self.settings.overlap
            && match self.settings.bound {
                Bound::Steps(steps) => steps > ahead,
                Bound::Unlimited => true,
            }
    }

    fn compute(&mut self, feeds: &[(&Output, Tensor)]) -> Result<Taken> {
        let (parts, rate) = (self.parts.clone(), self.settings.local_rate);
        let live = self.live()?;
        let Some((view, params)) = &mut live.model else {
            return Err(Status::internal("a replica without parameters"));
        };
        let values = {
            let mut run = Run::new();
            let copies = parts.ways.iter().filter_map(|way| match way {
                Way::Dense { value, .. } => Some(value),
                Way::Sparse { .. } => None,
            });
            for (value, param) in copies.zip(params.iter()) {
                run.feed(value, param);
            }
            for (output, value) in feeds {
                run.feed(output, value);
            }
            run.fetch(&parts.loss);
            fetch_gradients(&parts.ways, &mut run);
            live.session.execute(&run)?
        };
        let mut values = values.into_iter();
        let missing = || Status::internal("the loss is missing");
        let loss = number(&values.next().ok_or_else(missing)?)?;
        let gradients: Vec<Tensor> = values.collect();
        if let Some(rate) = rate {
            descend(&parts.ways, params, &gradients, rate)?;
        }
        let (version, clocks) = (view.version, view.clocks.clone());
        live.age += 1;
        let read = Read {
            worker: live.member.replica,
            step: self.clock,
            version,
            clocks,
        };
        self.gradients.add(&parts.ways, gradients, version)?;
        self.steps += 1;
        self.clock += 1;
        if self.gradients.steps >= self.settings.n_push {
            self.push()?;
            self.reap(!self.settings.overlap)?;
        }
        Ok(Taken { loss, read })
    }

    /// Hands what is accrued to the pusher, once it is done with the last push.
    fn push(&mut self) -> Result<()> {
        self.reap(true)?;
        let (parts, version) = (self.parts.clone(), self.gradients.version);
        let (steps, clock) = (self.steps, self.clock);
        let mut run = Run::new();
        self.gradients.feed(&parts.ways, &mut run)?;
        let live = self.live()?;
        parts.table.feed_push(&mut run, live.member, version, clock);
        run.target(&parts.push);
        live.pusher.post((run, steps))
    }

    /// Takes what the pusher has done; all of it, if it is to wait.
    fn reap(&mut self, wait: bool) -> Result<()> {
        let live = self.live()?;
        let mut outcome = None;
        while live.pusher.has_pending() {
            match wait {
                true => outcome = Some(live.pusher.take()?),
                false => match live.pusher.try_take() {
                    Some(done) => outcome = Some(done?),
                    None => break,
                },
            }
        }
        if let Some(steps) = outcome {
            self.acknowledged = steps;
        }
        Ok(())
    }

    fn flush_live(&mut self) -> Result<()> {
        if self.gradients.steps > 0 {
            self.push()?;
        }
        self.reap(true)
    }
}

/// Reads the table, and then the parameters.
fn fetch(session: &Session, parts: &Parts) -> Result<(View, Vec<Tensor>)> {
    let mut run = Run::new();
    parts.table.fetch_view(&mut run);
    for way in &parts.ways {
        if let Way::Dense { fetched, .. } = way {
            run.fetch(fetched);
        }
    }
    Table::view(session.execute(&run)?)
}

/// Descends on the replica's own copy.
fn descend(ways: &[Way], params: &mut [Tensor], gradients: &[Tensor], rate: f64) -> Result<()> {
    let mut params = params.iter_mut();
    let mut gradients = gradients.iter();
    for way in ways {
        match way {
            Way::Dense { .. } => {
                if let (Some(param), Some(gradient)) = (params.next(), gradients.next()) {
                    add_scaled(param, gradient, -rate)?;
                }
            }
            Way::Sparse { .. } => {
                gradients.nth(1);
            }
        }
    }
    Ok(())
}
