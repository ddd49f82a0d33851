//! Files in a real HDFS: what is saved is whole whatever call to the NameNode is lost, and what is wrong is one line at
//! once. `cargo xtask engines hdfs` starts it and runs this.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod common;

use common::{Fault, LONG, Protocol, Proxy, Subject, latest, save};
use downpour_formats::Storage;
use downpour_formats::event::{EventReader, EventWriter};
use downpour_formats::record::{Compression, RecordOptions, RecordReader, RecordWriter};
use downpour_graph::Code;
use downpour_stores::{Patience, Stores};
use downpour_wire::proto;
use std::time::{Duration, Instant};

fn service() -> String {
    std::env::var("DOWNPOUR_TEST_HDFS").expect("`cargo xtask engines hdfs` starts it and runs this")
}

fn stores(patience: Patience) -> Stores {
    Stores::new([]).patience(patience)
}

#[test]
fn a_save_broken_off_at_any_call_leaves_a_whole_checkpoint() {
    let url = service();
    let name_node = url.strip_prefix("hdfs://").unwrap().to_owned();
    let direct = stores(LONG);
    // Through a proxy the NameNode has another address.
    let subject = Subject {
        proxy: &|| Proxy::to(&name_node, Protocol::Hadoop),
        ways: &[
            (Fault::Lost, true),
            (Fault::Unanswered, true),
            (Fault::Lost, false),
            (Fault::Unanswered, false),
        ],
        direct: &Moved {
            url: url.clone(),
            inner: direct,
        },
        through: &|proxy, patience| {
            Box::new(Moved {
                url: format!("hdfs://{}", proxy.address),
                inner: stores(patience),
            })
        },
        dir: "nn://faults",
        large: 10_000,
    };
    subject.direct.create_dir("nn://faults").unwrap();
    let requests = subject.survive_every_request();
    println!("a save makes {requests} calls; it survived each of them in every way");
}

/// Files whose NameNode is reached at another address: `nn://` stands for it.
#[derive(Debug)]
struct Moved {
    url: String,
    inner: Stores,
}

impl Moved {
    fn at(&self, path: &str) -> String {
        path.replacen("nn://", &format!("{}/", self.url), 1)
    }
}

impl Storage for Moved {
    fn open(&self, path: &str) -> downpour_graph::Result<Box<dyn downpour_formats::ReadAt>> {
        self.inner.open(&self.at(path))
    }
    fn create(&self, path: &str) -> downpour_graph::Result<Box<dyn downpour_formats::PendingFile>> {
        self.inner.create(&self.at(path))
    }
    fn create_stream(
        &self,
        path: &str,
    ) -> downpour_graph::Result<Box<dyn downpour_formats::StreamFile>> {
        self.inner.create_stream(&self.at(path))
    }
    fn append_stream(
        &self,
        path: &str,
    ) -> downpour_graph::Result<Box<dyn downpour_formats::StreamFile>> {
        self.inner.append_stream(&self.at(path))
    }
    fn rename(&self, from: &str, to: &str) -> downpour_graph::Result<()> {
        self.inner.rename(&self.at(from), &self.at(to))
    }
    fn delete(&self, path: &str) -> downpour_graph::Result<()> {
        self.inner.delete(&self.at(path))
    }
    fn exists(&self, path: &str) -> downpour_graph::Result<bool> {
        self.inner.exists(&self.at(path))
    }
    fn size(&self, path: &str) -> downpour_graph::Result<u64> {
        self.inner.size(&self.at(path))
    }
    fn create_dir(&self, path: &str) -> downpour_graph::Result<()> {
        self.inner.create_dir(&self.at(path))
    }
    fn remove_dir(&self, path: &str) -> downpour_graph::Result<()> {
        self.inner.remove_dir(&self.at(path))
    }
    fn list(&self, dir: &str) -> downpour_graph::Result<Vec<String>> {
        self.inner.list(&self.at(dir))
    }
    fn glob(&self, pattern: &str) -> downpour_graph::Result<Vec<String>> {
        let found = self.inner.glob(&self.at(pattern))?;
        let back = |path: String| path.replacen(&format!("{}/", self.url), "nn://", 1);
        Ok(found.into_iter().map(back).collect())
    }
}

#[test]
fn files_directories_and_defaults_are_hadoops() {
    let (url, storage) = (service(), stores(LONG));
    let dir = format!("{url}/plain");
    storage.create_dir(&dir).unwrap();
    assert_eq!(
        storage.create_dir(&dir).unwrap_err().code,
        Code::AlreadyExists
    );
    // Larger than what is written in one go.
    for size in [0, 10, 20 << 20] {
        let data: Vec<u8> = (0..size).map(|i| ((i * 7) >> 5) as u8).collect();
        let path = format!("{dir}/x");
        let mut file = storage.create(&path).unwrap();
        for piece in data.chunks(1 << 20) {
            file.write(piece).unwrap();
        }
        file.seal().unwrap();
        file.publish().unwrap();
        let read = downpour_formats::storage::read_bounded(&storage, &path, 1 << 30);
        assert!(read.unwrap() == data);
    }
    // The configuration's own NameNode, without naming it.
    assert_eq!(storage.list("hdfs:///plain").unwrap(), ["x"]);
    assert_eq!(
        storage.glob(&format!("{url}/pl*/?")).unwrap(),
        [format!("{dir}/x")]
    );
    let missing = storage.open(&format!("{dir}/none")).unwrap_err();
    assert_eq!(
        missing.message,
        format!("{dir}/none; No such file or directory")
    );
    assert_eq!(
        storage.open(&dir).unwrap_err().message,
        format!("{dir}; Is a directory")
    );
    assert_eq!(
        storage.remove_dir(&dir).unwrap_err().code,
        Code::FailedPrecondition
    );
    storage.delete(&format!("{dir}/x")).unwrap();
    assert_eq!(
        storage.delete(&format!("{dir}/x")).unwrap_err().code,
        Code::NotFound
    );
    storage.remove_dir(&dir).unwrap();
    assert!(!storage.exists(&dir).unwrap());
}

#[test]
fn what_is_wrong_is_told_at_once() {
    let storage = stores(Patience::default());
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    for (path, expected) in [
        (format!("hdfs://{port}/x"), "refused"),
        ("hdfs://no-such-host.invalid/x".to_owned(), "no-such-host"),
        ("viewfs://none/x".to_owned(), "mount"),
    ] {
        let begin = Instant::now();
        let status = storage.exists(&path).unwrap_err();
        assert!(
            begin.elapsed() < Duration::from_secs(5),
            "{:?}",
            begin.elapsed()
        );
        assert!(
            status.message.contains(expected) && !status.message.contains('\n'),
            "{status}"
        );
    }
}

#[test]
fn an_event_file_is_seen_to_grow_by_one_who_follows_it() {
    let (dir, storage) = (format!("{}/events", service()), stores(LONG));
    storage.create_dir(&dir).unwrap();
    let path = format!("{dir}/events.out.tfevents.1.h");
    let mut writer = EventWriter::create(&storage, &path, 1.0).unwrap();
    let mut reader = EventReader::open(&storage, &path).unwrap();
    for step in 0..3 {
        let event = proto::Event {
            step,
            ..Default::default()
        };
        writer.write(&event).unwrap();
        writer.flush().unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            match reader.read().unwrap() {
                Some(event) if event.what.is_none() && event.step == step => break,
                Some(_) => {}
                None => assert!(Instant::now() < deadline, "step {step} is not seen"),
            }
        }
    }
    writer.finish().unwrap();
    // Another who goes on behind it.
    let mut more = storage.append_stream(&path).unwrap();
    more.write(b"torn").unwrap();
    more.sync().unwrap();
    assert!(reader.read().unwrap().is_none());
}

#[test]
fn records_are_read_about_as_fast_as_the_client_reads() {
    let (url, storage) = (service(), stores(LONG));
    let path = format!("{url}/a.tfrecord");
    let stream = storage.create_stream(&path).unwrap();
    let mut writer = RecordWriter::new(stream, Compression::None);
    let record = vec![7; 100_000];
    let count = 640;
    for _ in 0..count {
        writer.write(&record).unwrap();
    }
    writer.finish().unwrap();
    let client = hdfs_native::ClientBuilder::new()
        .with_url(&url)
        .build()
        .unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (mut ours, mut theirs) = (Duration::MAX, Duration::MAX);
    for _ in 0..3 {
        let begin = Instant::now();
        let bytes = runtime.block_on(async {
            let reader = client.read("/a.tfrecord").await.unwrap();
            reader.read_range(0, reader.file_length()).await.unwrap()
        });
        theirs = theirs.min(begin.elapsed());
        assert_eq!(bytes.len(), count * (record.len() + 16));
        let begin = Instant::now();
        let mut reader = RecordReader::open(&storage, &path, RecordOptions::default()).unwrap();
        let mut read = 0;
        while let Some(bytes) = reader.read().unwrap() {
            assert_eq!(bytes.len(), record.len());
            read += 1;
        }
        assert_eq!(read, count);
        ours = ours.min(begin.elapsed());
    }
    let megabytes = (count * record.len()) as f64 / 1e6;
    println!(
        "records: {:.0} MB/s, the client alone {:.0} MB/s, ratio {:.2}",
        megabytes / ours.as_secs_f64(),
        megabytes / theirs.as_secs_f64(),
        theirs.as_secs_f64() / ours.as_secs_f64()
    );
}

#[test]
fn a_save_waits_for_a_name_node_that_is_away() {
    let url = service();
    let name_node = url.strip_prefix("hdfs://").unwrap().to_owned();
    let proxy = Proxy::to(&name_node, Protocol::Hadoop);
    let through = Moved {
        url: format!("hdfs://{}", proxy.address),
        inner: stores(Patience::default()),
    };
    through.create_dir("nn://away").unwrap();
    save(&through, "nn://away", 1, 100).unwrap();
    proxy.out(true);
    std::thread::scope(|scope| {
        proxy.plan(usize::MAX, Fault::Lost, false);
        let saving = scope.spawn(|| save(&through, "nn://away", 2, 100));
        while proxy.count() < 5 {
            std::thread::yield_now();
        }
        proxy.out(false);
        saving.join().unwrap().unwrap();
    });
    assert_eq!(latest(&through, "nn://away", 100), 2);
}
