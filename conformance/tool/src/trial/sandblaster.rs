//! A convex problem minimized by Sandblaster on a cluster of this process: what `sandblaster.py`
//! compares with SciPy's L-BFGS-B, iterate by iterate.

use anyhow::{Context as _, Result, anyhow};
use downpour::train::sandblaster::{Method, Sandblaster};
use downpour::{DType, Graph, Init, LocalCluster, Tensor};
use serde::{Deserialize, Serialize};

/// Rows and what they should give.
#[derive(Deserialize)]
struct Problem {
    /// Whether the loss is logistic; the square of the difference if not.
    logistic: bool,
    width: usize,
    rows: Vec<f64>,
    wanted: Vec<f64>,
    portions: usize,
    l2: f64,
    history: usize,
    iterations: u64,
    gradient: f64,
}

#[derive(Default, Serialize)]
struct Found {
    /// The objective at the first point and after each iteration.
    values: Vec<f64>,
    evaluations: u64,
    point: Vec<f64>,
}

/// Reads a problem, minimizes, and prints what it found as JSON.
#[expect(clippy::print_stdout, reason = "it is a program's answer")]
pub(crate) fn run(path: &str) -> Result<()> {
    let problem = std::fs::read(path).with_context(|| path.to_owned())?;
    let problem: Problem = serde_json::from_slice(&problem)?;
    let found = minimize(&problem).map_err(|e| anyhow!("{e}"))?;
    println!("{}", serde_json::to_string(&found)?);
    Ok(())
}

fn minimize(p: &Problem) -> Result<Found, Box<dyn std::error::Error + Send + Sync>> {
    const REPLICAS: usize = 3;
    let cluster = LocalCluster::start(2, REPLICAS + 1)?;
    let g = Graph::new();
    // Two parts on two servers.
    let half = p.width / 2;
    let part = |task: usize, rows: usize| {
        g.with_device(&format!("/job:ps/task:{task}"), || {
            let made = g.variable(&format!("part_{task}")).shape([rows, 1]);
            made.dtype(DType::Double).init(Init::zeros()).build()
        })
    };
    let parts = [part(0, half), part(1, p.width - half)];
    let rows = g.placeholder("rows", DType::Double, [None, Some(p.width)]);
    let wanted = g.placeholder("wanted", DType::Double, [None]);
    let weights = downpour::concat(&[parts[0].value().clone(), parts[1].value().clone()], 0);
    let scores = rows.matmul(&weights).reshape(&[-1]);
    let loss = match p.logistic {
        true => scores.softplus() - &scores * &wanted,
        false => (&scores - &wanted).square() * 0.5,
    };
    let plan = Sandblaster::new(p.portions)
        .method(Method::LBfgs(p.history))
        .l2(p.l2)
        .iterations(p.iterations)
        .small_gradient(p.gradient)
        .small_decrease(0.0)
        .build(&loss.sum(()))?;
    let count = p.wanted.len();
    let feed = |portion: usize, run: &mut downpour::Run| {
        let (from, to) = (
            portion * count / p.portions,
            (portion + 1) * count / p.portions,
        );
        let values = p.rows[from * p.width..to * p.width].to_vec();
        let values = Tensor::from_vec(values, [to - from, p.width]);
        run.feed(
            &rows,
            values.map_err(|e| downpour::Status::internal(e.to_string()))?,
        );
        run.feed(&wanted, p.wanted[from..to].to_vec());
        Ok(())
    };
    let mut found = Found::default();
    std::thread::scope(|scope| {
        for (i, server) in cluster.workers().iter().enumerate().skip(1) {
            let (plan, feed) = (&plan, &feed);
            scope.spawn(move || plan.replica(i).work(server, feed));
        }
        let coordinator = plan.coordinator().observe(|progress, session| {
            found.values.push(progress.value);
            found.evaluations = progress.evaluations;
            found.point.clear();
            for part in &parts {
                let value = session.fetch(part)?;
                let value = value.as_slice::<f64>();
                let value = value.map_err(|e| downpour::Status::internal(e.to_string()))?;
                found.point.extend_from_slice(value);
            }
            Ok(())
        });
        coordinator.run(&cluster.workers()[0])
    })?;
    Ok(found)
}
