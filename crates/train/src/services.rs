//! What a supervisor's chief does on threads beside training: checkpoints, summaries, the speed.
//! The threads belong to one session; the next one has its own.

use crate::coordinator::Coordinator;
use crate::events::Events;
use crate::hooks::{Hook, integer};
use crate::monitored::is_gone;
use crate::saver::{Saver, in_dir};
use downpour_build::{Output, Result};
use downpour_client::Session;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// Name of checkpoints in their directory.
const BASENAME: &str = "model.ckpt";

/// How long threads may take to end where training goes on.
const FAREWELL: Duration = Duration::from_secs(2);

/// What is to be done how often.
pub(crate) struct ServicePlan {
    pub(crate) events: Events,
    /// All summaries of the graph.
    pub(crate) summaries: Option<Output>,
    /// The count of steps.
    pub(crate) step: Output,
    pub(crate) save_model: Option<Duration>,
    pub(crate) save_summaries: Option<Duration>,
    pub(crate) grace: Duration,
    /// What an error stops.
    pub(crate) threads: Coordinator,
}

/// The threads of a supervisor's chief.
pub(crate) struct Services {
    plan: ServicePlan,
    saver: Arc<Saver>,
    prefix: String,
    /// The step of the newest checkpoint.
    saved: Arc<Mutex<Option<i64>>>,
    running: Option<Coordinator>,
    has_begun: bool,
}

impl Services {
    pub(crate) fn new(plan: ServicePlan, saver: Arc<Saver>, dir: &str) -> Services {
        Services {
            plan,
            saver,
            prefix: in_dir(dir, BASENAME),
            saved: Arc::default(),
            running: None,
            has_begun: false,
        }
    }

    /// Runs `body` every so often on a thread of this session's. A session that is lost ends it
    /// soon; any other error ends training.
    fn every(
        &self,
        running: &Coordinator,
        name: &str,
        time: Option<Duration>,
        mut body: impl FnMut() -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let Some(time) = time else {
            return Ok(());
        };
        let all = self.plan.threads.clone();
        running.spawn_every(name, time, move || {
            match body() {
                Err(why) if is_gone(&why) => info!(%why, "put off"),
                Err(why) => all.fail(why),
                Ok(()) => {}
            }
            Ok(())
        })
    }

    fn halt(&mut self, grace: Duration) {
        if let Some(running) = self.running.take() {
            running.request_stop();
            if let Err(why) = running.join(grace) {
                warn!(%why, "a service did not end");
            }
        }
    }

    /// Saves, unless there is a checkpoint of this step.
    fn saving(&self, session: &Arc<Session>) -> impl FnMut() -> Result<()> + Send + 'static {
        let (saver, prefix, saved) = (self.saver.clone(), self.prefix.clone(), self.saved.clone());
        let (events, step, session) = (
            self.plan.events.clone(),
            self.plan.step.clone(),
            session.clone(),
        );
        move || {
            let now = integer(&session.fetch(&step)?)?;
            let mut saved = saved.lock();
            if *saved == Some(now) {
                return Ok(());
            }
            let Some(path) = saver.save_as_chief(&session, &prefix, Some(now))? else {
                return Ok(());
            };
            *saved = Some(now);
            events.checkpoint(now, &path)
        }
    }
}

impl Hook for Services {
    fn after_create(&mut self, session: &Arc<Session>) -> Result<()> {
        // Those of a lost session end soon, and what they hold is not waited for.
        self.halt(FAREWELL);
        self.saved = Arc::default();
        let plan = &self.plan;
        let now = integer(&session.fetch(&plan.step)?)?;
        if !self.has_begun {
            self.has_begun = true;
            plan.events.graph(session.graph())?;
        }
        plan.events.started(now)?;
        let running = plan.threads.child();
        self.every(
            &running,
            "checkpoints",
            plan.save_model,
            self.saving(session),
        )?;
        if let Some(summaries) = plan.summaries.clone() {
            let (events, step) = (plan.events.clone(), plan.step.clone());
            let session = session.clone();
            self.every(&running, "summaries", plan.save_summaries, move || {
                let [summary, now] = session.step().fetch_all([&summaries, &step])?;
                events.summary(integer(&now)?, &summary)?;
                events.flush()
            })?;
        }
        let (events, step, session) = (plan.events.clone(), plan.step.clone(), session.clone());
        let mut last = (now, Instant::now());
        self.every(&running, "speed", plan.save_summaries, move || {
            let now = (integer(&session.fetch(&step)?)?, Instant::now());
            let seconds = (now.1 - last.1).as_secs_f64();
            // The first turn comes at once, when there is nothing to tell.
            if now.0 > last.0 && seconds > 0.0 {
                let speed = (now.0 - last.0) as f64 / seconds;
                info!("global_step/sec: {speed:.6}");
                events.scalar(now.0, "global_step/sec", speed as f32)?;
            }
            last = now;
            Ok(())
        })?;
        self.running = Some(running);
        Ok(())
    }

    fn retire(&mut self) {
        self.halt(FAREWELL);
    }

    fn end(&mut self, session: &Arc<Session>) -> Result<()> {
        self.halt(self.plan.grace);
        if self.plan.save_model.is_some() {
            self.saving(session)()?;
        }
        self.plan.events.flush()
    }
}

impl Drop for Services {
    fn drop(&mut self) {
        if let Some(running) = &self.running {
            running.request_stop();
        }
    }
}
