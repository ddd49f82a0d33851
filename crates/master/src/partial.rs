//! Partial runs: a step that is fed and fetched over several calls. Each call is checked against
//! what the set-up named, and against what the feeds so far can reach.

use crate::plans::Registered;
use downpour_graph::{Graph, NodeId, Result, Status, parse_endpoint};
use downpour_net::PartialStep;
use downpour_plan::Request;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The partial runs of a session.
#[derive(Default)]
pub(crate) struct PartialRuns {
    state: Mutex<(u64, HashMap<String, PartialRun>)>,
}

struct PartialRun {
    step: Arc<dyn PartialStep>,
    request: Request,
    graph: Arc<Graph>,
    fed: HashSet<String>,
    fetched: HashSet<String>,
}

/// What one call does.
pub(crate) struct PartialCall {
    pub(crate) step: Arc<dyn PartialStep>,
    /// Whether nothing is left to feed or fetch after it.
    pub(crate) last: bool,
}

impl PartialRuns {
    /// Takes in a started step and returns its handle.
    pub(crate) fn add(&self, step: Arc<dyn PartialStep>, plan: &Registered) -> String {
        let mut state = self.state.lock();
        let handle = state.0.to_string();
        state.0 += 1;
        let run = PartialRun {
            step,
            request: plan.request.clone(),
            graph: Arc::new(plan.graph.clone()),
            fed: HashSet::new(),
            fetched: HashSet::new(),
        };
        state.1.insert(handle.clone(), run);
        handle
    }

    /// Checks one call and marks its feeds and fetches as used.
    pub(crate) fn call(
        &self,
        handle: &str,
        feeds: &[String],
        fetches: &[String],
    ) -> Result<PartialCall> {
        let mut state = self.state.lock();
        let run = state.1.get_mut(handle).ok_or_else(|| {
            Status::invalid_argument("Must run PartialRunSetup before performing partial runs")
        })?;
        for feed in feeds {
            if !run.request.feeds.contains(feed) {
                return refuse("feed", feed, "was not specified in partial_run_setup.");
            }
            if run.fed.contains(feed) {
                return refuse("feed", feed, "has already been fed.");
            }
        }
        let mut fed = run.fed.clone();
        fed.extend(feeds.iter().cloned());
        for fetch in fetches {
            if !run.request.fetches.contains(fetch) {
                return refuse("fetch", fetch, "was not specified in partial_run_setup.");
            }
            if run.fetched.contains(fetch) {
                return refuse("fetch", fetch, "has already been fetched.");
            }
        }
        check_reachable(run, &fed, fetches)?;
        run.fed = fed;
        run.fetched.extend(fetches.iter().cloned());
        let last = run.fed.len() == run.request.feeds.len()
            && run.fetched.len() == run.request.fetches.len();
        let step = run.step.clone();
        if last {
            state.1.remove(handle);
        }
        Ok(PartialCall { step, last })
    }

    /// Forgets all runs.
    pub(crate) fn clear(&self) {
        let runs = std::mem::take(&mut self.state.lock().1);
        drop(runs);
    }

    /// Forgets a run that failed.
    pub(crate) fn remove(&self, handle: &str) {
        let gone = self.state.lock().1.remove(handle);
        drop(gone);
    }
}

fn refuse<T>(what: &str, name: &str, why: &str) -> Result<T> {
    Err(Status::invalid_argument(format!("The {what} {name} {why}")))
}

/// Refuses a fetch that depends on a feed still to come: waiting for it would never end.
fn check_reachable(run: &PartialRun, fed: &HashSet<String>, fetches: &[String]) -> Result<()> {
    let missing: HashSet<&str> = run
        .request
        .feeds
        .iter()
        .filter(|f| !fed.contains(*f))
        .map(String::as_str)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    for fetch in fetches {
        let (node, output) = parse_endpoint(fetch).unwrap_or((fetch, 0));
        let Some(sink) = run.graph.find(&format!("_send_{node}_{output}")) else {
            continue;
        };
        let mut stack = vec![sink];
        let mut seen: HashSet<NodeId> = HashSet::new();
        while let Some(id) = stack.pop() {
            if !seen.insert(id) {
                continue;
            }
            let node = run.graph.node(id);
            if node.op_name() == "_Recv"
                && let Ok(feed) = node.attrs.str("tensor_name")
                && missing.contains(feed)
            {
                // TensorFlow names the tensor that is missing, not the one asked for.
                return Err(Status::invalid_argument(format!(
                    "Fetch {feed} can't be computed from the feeds that have been fed so far."
                )));
            }
            stack.extend(node.inputs.iter().map(|e| e.node));
            stack.extend(node.control_inputs.iter().copied());
        }
    }
    Ok(())
}
