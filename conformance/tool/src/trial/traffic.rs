//! What a coordinator of Sandblaster exchanges with other tasks in an iteration, by the number of
//! parameters: `cargo xtask sandblaster --traffic` makes a table of it. The bytes are those that the
//! coordinator's own task counts.

use anyhow::{Context as _, Result, anyhow, bail};
use downpour::train::sandblaster::{Method, Progress, Sandblaster};
use downpour::{DType, Graph, Init, LocalCluster, Output, RunningServer, inspect_task};
use serde::Serialize;
use std::time::{Duration, Instant};

/// Pairs of the history. Each has a command of its own, which the servers are told once.
const HISTORY: usize = 3;
/// Iterations after which everything has been said once.
const WARM: u64 = HISTORY as u64 + 2;
const ITERATIONS: u64 = WARM + 8;
/// Both are handed out in one message: what is sent does not depend on who is quicker.
const PORTIONS: usize = 2;

/// What was measured with one number of parameters.
#[derive(Debug, Serialize)]
pub(crate) struct Traffic {
    parameters: usize,
    /// Bytes of single iterations of one evaluation each, both ways, in ascending order.
    bytes: Vec<u64>,
    seconds: f64,
}

/// Measures and prints JSON.
#[expect(clippy::print_stdout, reason = "it is a program's answer")]
pub(crate) fn run(parameters: &str) -> Result<()> {
    let measured = measure(parameters.parse().context(parameters.to_owned())?)?;
    println!("{}", serde_json::to_string(&measured)?);
    Ok(())
}

/// Bytes that a task has exchanged with others, both ways.
fn exchanged(server: &RunningServer) -> downpour::Result<u64> {
    let failed = |e: String| downpour::Status::unavailable(e);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| failed(e.to_string()))?;
    let address = server.address().to_string();
    let report = runtime.block_on(inspect_task(&address, Duration::from_secs(60)));
    let report = report.map_err(|e| failed(e.to_string()))?;
    let both = report.peers.iter().map(|p| p.bytes_sent + p.bytes_received);
    Ok(both.sum())
}

/// A portion's share of a bowl that is steeper in some directions than in others, alike for any
/// number of parameters.
fn bowl(g: &Graph, x: &Output, count: usize) -> Output {
    let place = g.range(0, count as i32, 1).cast(DType::Float) * (1.0 / count as f64);
    let steepness = (place * 1000f64.ln()).exp();
    ((x - 1.0).square() * steepness).sum(()) * (0.5 / (count * PORTIONS) as f64)
}

/// Minimizes a function of so many parameters, half of them on each of two servers.
fn measure(parameters: usize) -> Result<Traffic> {
    if !(2..=200_000_000).contains(&parameters) {
        bail!("{parameters} parameters; 2 to 200,000,000 can be measured");
    }
    let cluster = LocalCluster::start(2, 2).map_err(|e| anyhow!("{e}"))?;
    let g = Graph::new();
    let half = parameters / 2;
    let part = |task: usize, count: usize| {
        g.with_device(&format!("/job:ps/task:{task}"), || {
            let made = g.variable(&format!("x_{task}")).shape([count]);
            made.init(Init::filled(3.0)).build()
        })
    };
    let (a, b) = (part(0, half), part(1, parameters - half));
    let plan = g.with_device("/job:worker/task:1", || {
        let loss = bowl(&g, &a, half) + bowl(&g, &b, parameters - half);
        let settings = Sandblaster::new(PORTIONS).method(Method::LBfgs(HISTORY));
        let settings = settings.copies(1).iterations(ITERATIONS);
        settings
            .small_gradient(0.0)
            .small_decrease(0.0)
            .build(&loss)
    });
    let plan = plan.map_err(|e| anyhow!("{e}"))?;
    let [own, replicas] = cluster.workers() else {
        bail!("two workers were asked for");
    };
    let begin = Instant::now();
    let mut seen: Vec<(Progress, u64)> = Vec::new();
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| plan.replica(0).work(replicas, |_, _| Ok(())));
        let coordinator = plan.coordinator().observe(|progress, _| {
            seen.push((*progress, exchanged(own)?));
            Ok(())
        });
        coordinator.run(own)
    });
    outcome.map_err(|e| anyhow!("{e}"))?;
    let warm = seen.windows(2).filter(|w| w[0].0.iteration >= WARM);
    let mut bytes: Vec<u64> = warm
        .filter(|w| w[1].0.evaluations == w[0].0.evaluations + 1)
        .map(|w| w[1].1 - w[0].1)
        .collect();
    bytes.sort_unstable();
    if bytes.len() < 4 {
        bail!("too few iterations of one evaluation: {seen:?}");
    }
    Ok(Traffic {
        parameters,
        bytes,
        seconds: begin.elapsed().as_secs_f64(),
    })
}

#[cfg(test)]
mod tests {
    use super::measure;

    /// Nothing but how often the coordinator asks whether tickets were taken while it waits may
    /// differ: 68 bytes after 20, 40, 80 … ms. On an idle machine it does not wait so long, and both
    /// are the same to the byte; on a busy one it has asked 13 times after a minute.
    const LOOKS: u64 = 13 * 68;

    #[test]
    fn a_coordinator_of_a_hundred_thousand_parameters_sends_no_more_than_of_a_thousand() {
        let (small, large) = (measure(1_000).unwrap(), measure(100_000).unwrap());
        println!("{small:?}\n{large:?}");
        let (least, most) = (small.bytes[0], large.bytes[0]);
        assert!(least > 1000, "commands and their answers: {small:?}");
        assert!(most <= least + LOOKS, "{small:?} {large:?}");
    }
}
