//! Readers against queues that have work, get it later, or never do.

use super::source::{Layout, Spec};
use super::*;
use crate::queue::queue::{Kind, Spec as QueueSpec};
use crate::testing::device;
use downpour_formats::record::Compression;
use downpour_graph::Code;
use downpour_tensor::{PartialShape, Tensor};
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

fn queue() -> Arc<Queue> {
    Arc::new(Queue::new(QueueSpec {
        kind: Kind::Fifo,
        name: "q".into(),
        types: vec![DType::String],
        shapes: vec![PartialShape::from_dims([])],
        capacity: 100,
        min_after_dequeue: 0,
        seeds: (0, 0),
    }))
}

fn put(q: &Arc<Queue>, names: &[&str]) {
    let elements: VecDeque<_> = names
        .iter()
        .map(|n| vec![Tensor::string(n.to_string())])
        .collect();
    q.enqueue(elements, &Cancellation::new(), Box::new(|_| {}));
}

type Answer = Receiver<Result<Vec<Record>>>;

fn read(r: &Arc<Reader>, q: &Arc<Queue>, up_to: Option<usize>, c: &Arc<Cancellation>) -> Answer {
    let (tx, rx) = channel();
    let want = Want {
        up_to,
        queue: q.clone(),
        device: device(),
    };
    r.read(want, c, Box::new(move |a| tx.send(a).unwrap()));
    rx
}

fn wait(rx: &Answer) -> Result<Vec<(String, String)>> {
    let text = |b: Bytes| String::from_utf8(b.to_vec()).unwrap();
    let records = rx.recv_timeout(Duration::from_secs(20)).unwrap()?;
    Ok(records
        .into_iter()
        .map(|(k, v)| (text(k), text(v)))
        .collect())
}

fn file(dir: &tempfile::TempDir, name: &str, contents: &[u8]) -> String {
    let path = dir.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(&path, contents).unwrap();
    path
}

#[test]
fn a_read_waits_for_work_and_later_reads_wait_for_it() {
    let (q, c) = (queue(), Cancellation::new());
    let r = Arc::new(Reader::new("r".into(), Spec::Identity));
    let (first, second) = (read(&r, &q, None, &c), read(&r, &q, None, &c));
    assert!(first.recv_timeout(Duration::from_millis(20)).is_err());
    put(&q, &["a", "b"]);
    assert_eq!(wait(&first).unwrap()[0].0, "a");
    assert_eq!(wait(&second).unwrap()[0].0, "b");
    assert_eq!((r.progress().produced, r.progress().finished), (2, 2));
}

#[test]
fn cancelling_a_step_ends_its_reads_and_leaves_the_reader_usable() {
    let (q, mine, other) = (queue(), Cancellation::new(), Cancellation::new());
    let r = Arc::new(Reader::new("r".into(), Spec::Identity));
    let (under_way, queued) = (read(&r, &q, None, &mine), read(&r, &q, None, &mine));
    let next = read(&r, &q, None, &other);
    mine.cancel(Status::cancelled("stop"));
    for rx in [&under_way, &queued] {
        assert_eq!(wait(rx).unwrap_err().code, Code::Cancelled);
    }
    put(&q, &["x"]);
    assert_eq!(wait(&next).unwrap()[0].1, "x");
}

#[test]
fn lines_of_several_files_with_a_missing_one_skipped() {
    let dir = tempfile::tempdir().unwrap();
    let a = file(&dir, "a", b"h\nx\r\ny");
    let b = file(&dir, "b", b"h\nz\n");
    let (q, c) = (queue(), Cancellation::new());
    put(&q, &[&a, "/nowhere", &b]);
    let r = Arc::new(Reader::new("r".into(), Spec::TextLine { skip: 1 }));
    let got = wait(&read(&r, &q, Some(9), &c)).unwrap();
    assert_eq!(
        got,
        [
            (format!("{a}:2"), "x".into()),
            (format!("{a}:3"), "y".into())
        ]
    );
    let e = wait(&read(&r, &q, None, &c)).unwrap_err();
    assert_eq!(e.message, "/nowhere; No such file or directory");
    assert_eq!(wait(&read(&r, &q, None, &c)).unwrap()[0].1, "z");
    assert!(wait(&read(&r, &q, Some(0), &c)).unwrap().is_empty());
}

#[test]
fn equal_records_may_overlap_and_need_their_footer() {
    let dir = tempfile::tempdir().unwrap();
    let f = file(&dir, "f", b"HHaaabbbcccdF");
    let take = |header, footer, hop| {
        let (q, c) = (queue(), Cancellation::new());
        put(&q, &[&f]);
        let layout = Layout {
            header,
            record: 3,
            footer,
            hop,
            compression: Compression::None,
        };
        let r = Arc::new(Reader::new("r".into(), Spec::FixedLength(layout)));
        wait(&read(&r, &q, Some(9), &c)).map(|v| v.into_iter().map(|r| r.1).collect::<Vec<_>>())
    };
    assert_eq!(take(2, 2, 3).unwrap(), ["aaa", "bbb", "ccc"]);
    assert_eq!(take(0, 0, 5).unwrap(), ["HHa", "bbb", "cdF"]);
    assert_eq!(take(0, 0, 2).unwrap().len(), 6);
    assert_eq!(take(20, 0, 3).unwrap_err().message, "reached end of file");
}
