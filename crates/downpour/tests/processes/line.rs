//! The program that the processes run: a line, and a witness on the other ps that counts steps
//! beside the shared count. It writes down when it made each step, and who held it up.

use crate::tasks::{DATA, TRACE};
use downpour::program::{Program, Report, Worker};
use downpour::train::{GradientDescent, MonitoredSession};
use downpour::{Code, DType, Init, Operation, Output, Result, Status};
use std::fs::File;
use std::io::Write as _;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(crate) struct Line {
    trace: Option<Arc<File>>,
    /// After how many steps the data ends.
    data: usize,
}

impl Line {
    pub(crate) fn from_env() -> Line {
        let open = |path| {
            File::options()
                .append(true)
                .create(true)
                .open(path)
                .unwrap()
        };
        Line {
            trace: std::env::var(TRACE).ok().map(|path| Arc::new(open(path))),
            data: std::env::var(DATA).map_or(usize::MAX, |n| n.parse().unwrap()),
        }
    }
}

pub(crate) struct Model {
    x: Output,
    y: Output,
    train: Operation,
    seen: Operation,
    slope: Output,
    witness: Output,
    step: Output,
    done: usize,
}

/// Seconds since 1970, as all processes of a machine count them.
pub(crate) fn seconds() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs_f64()
}

/// One write, so that a reader sees whole lines.
fn note(trace: &Option<Arc<File>>, what: &str) {
    if let Some(trace) = trace {
        let line = format!("{:.3} {what}\n", seconds());
        (&**trace).write_all(line.as_bytes()).unwrap();
    }
}

impl Program for Line {
    type Model = Model;

    fn build(&self, worker: &Worker) -> Result<Model> {
        let g = worker.graph();
        let x = g.placeholder("x", DType::Float, [None]);
        let y = g.placeholder("y", DType::Float, [None]);
        let witness = g.variable("witness").init(Init::value(0i64));
        let witness = witness.trainable(false).build();
        let slope = g.variable("slope").init(Init::value(0.0f32)).build();
        let loss = (&*slope * &x - &y).square().mean(());
        let train = worker.minimize(&GradientDescent::new(0.05), &loss)?;
        let (missing, trace) = (worker.missing(), self.trace.clone());
        std::thread::spawn(move || {
            let mut seen = Vec::new();
            loop {
                let now = missing.changed_from(&seen, Duration::from_secs(3600));
                note(&trace, &format!("missing {}", now.join(",")));
                seen = now;
            }
        });
        Ok(Model {
            x,
            y,
            train,
            seen: witness.assign_add(&g.constant(1i64)),
            slope: slope.value().clone(),
            witness: witness.value().clone(),
            step: worker.global_step().value().clone(),
            done: 0,
        })
    }

    fn step(&self, m: &mut Model, session: &mut MonitoredSession) -> Result<()> {
        if m.done == self.data {
            return Err(Status::new(Code::OutOfRange, "the data has ended"));
        }
        m.done += 1;
        // Slow enough to be killed on the way.
        std::thread::sleep(Duration::from_millis(10));
        let step = session
            .step()
            .feed(&m.x, [1.0f32, 2.0])
            .feed(&m.y, [3.0f32, 6.0]);
        let step = step.target(&m.train).target(&m.seen).fetch(&m.step)?;
        note(
            &self.trace,
            &format!("step {}", step.scalar_value::<i64>()?),
        );
        Ok(())
    }

    fn finish(&self, m: &mut Model, session: &mut MonitoredSession) -> Result<Report> {
        let [slope, witness] = session.raw()?.step().fetch_all([&m.slope, &m.witness])?;
        Ok(Report::from([
            ("slope".to_owned(), slope.scalar_value::<f32>()?.into()),
            ("witness".to_owned(), witness.scalar_value::<i64>()? as f64),
        ]))
    }
}
