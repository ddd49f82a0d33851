//! Replicas of two tasks each around two parameter servers: model and data parallelism together.

use downpour::layers::{ColumnDense, RowDense};
use downpour::losses::sparse_softmax_cross_entropy;
use downpour::mnist::{Batches, Classifier, Digits, Mnist, PIXELS};
use downpour::program::{self, Options, Program, ProgramError, Report, Worker};
use downpour::train::{Adagrad, MonitoredSession};
use downpour::{Operation, Result};
use std::collections::BTreeSet;

struct Split {
    data: Mnist,
}

struct Model {
    classifier: Classifier,
    train: Operation,
    batches: Batches,
}

impl Program for Split {
    type Model = Model;

    fn build(&self, worker: &Worker) -> Result<Model> {
        assert_eq!((worker.count(), worker.partitions().len()), (2, 2));
        let (g, tasks) = (worker.graph(), worker.partitions());
        let digits = Digits::placeholders(g);
        let hidden = ColumnDense::new(g, "hidden", PIXELS, 24, tasks);
        let output = RowDense::new(g, "output", 24, 10, tasks);
        let logits = output.apply(&hidden.apply(&digits.images).map(|h| h.relu()));
        let loss = sparse_softmax_cross_entropy(&digits.labels, &logits);
        let share = self.data.train.share(worker.index(), worker.count());
        let train = worker.minimize(&Adagrad::new(0.1), &loss)?;
        // The heavy operations are on both tasks of this replica, forth and back.
        let operations = g.operations().into_iter();
        let products = operations.filter(|o| o.op() == "MatMul");
        let devices: BTreeSet<String> = products.map(|o| o.device()).collect();
        let own = [0, 1].map(|k| format!("/job:worker/task:{}", 2 * worker.index() + k));
        assert_eq!(devices, BTreeSet::from(own));
        let keepers = hidden.kernel.parts().iter();
        let keepers: BTreeSet<String> = keepers.map(|v| v.handle().operation().device()).collect();
        let ps = [0, 1].map(|k| format!("/job:ps/task:{k}"));
        assert_eq!(keepers, BTreeSet::from(ps));
        Ok(Model {
            train,
            classifier: digits.classifier(&logits),
            batches: share.batches(50, worker.index() as u64),
        })
    }

    fn step(&self, m: &mut Model, session: &mut MonitoredSession) -> Result<()> {
        let batch = m.batches.next_batch();
        m.classifier.train(session, &m.train, batch)
    }

    fn finish(&self, m: &mut Model, session: &mut MonitoredSession) -> Result<Report> {
        let session = session.raw()?;
        let some = self.data.test.share(0, 10);
        let accuracy = m.classifier.accuracy(&session, &some)?;
        Ok(Report::from([("accuracy".to_owned(), accuracy)]))
    }
}

/// Two replicas of two tasks; 85 % of a tenth of the test images.
fn learn(sync: bool, steps: i64) {
    let program = Split {
        data: Mnist::shipped().unwrap(),
    };
    let options = Options {
        ps: 2,
        workers: 4,
        partitions: 2,
        sync,
        steps,
        ..Options::default()
    };
    let report = program::run(&program, &options).unwrap();
    assert!(report["accuracy"] >= 0.85, "{report:?}");
    assert!(report["steps"] >= steps as f64, "{report:?}");
}

#[test]
fn replicas_of_several_tasks_train_asynchronously() {
    learn(false, 400);
}

#[test]
fn replicas_of_several_tasks_train_synchronously() {
    learn(true, 160);
}

#[test]
fn workers_that_do_not_come_out_even_are_refused() {
    let program = Split {
        data: Mnist::shipped().unwrap(),
    };
    for partitions in [0, 2] {
        let options = Options {
            workers: 3,
            partitions,
            ..Options::default()
        };
        let error = program::run(&program, &options).err();
        let text = "3 workers cannot form replicas";
        assert!(
            matches!(&error, Some(ProgramError::Training(e)) if e.message.contains(text)),
            "{error:?}"
        );
    }
}
