//! Files in a real S3 server: what is saved is whole whatever request is lost, what is wrong is one line at once, and
//! reading is about as fast as the client's own. `cargo xtask engines s3` starts the server and runs this.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod common;

use common::{Fault, LONG, Protocol, Proxy, Subject, latest, save};
use downpour_formats::Storage;
use downpour_formats::event::{EventReader, EventWriter};
use downpour_formats::record::{Compression, RecordOptions, RecordReader, RecordWriter};
use downpour_graph::Code;
use downpour_stores::{Patience, Stores};
use downpour_wire::proto;
use object_store::ObjectStoreExt as _;
use object_store::aws::AmazonS3Builder;
use object_store::path::Path;
use std::time::{Duration, Instant};

/// What nobody may ever read again.
const SECRET: &str = "wJalrXUtnFEMI-K7MDENG-bPxRfiCYEXAMPLEKEY";
/// Every mistake is told within this.
const PROMPT: Duration = Duration::from_secs(5);

fn endpoint() -> String {
    std::env::var("DOWNPOUR_TEST_S3")
        .expect("`cargo xtask engines s3` starts the server and runs this")
}

fn environment(endpoint: &str) -> Vec<(String, String)> {
    [
        ("AWS_ENDPOINT_URL", endpoint),
        ("AWS_ACCESS_KEY_ID", "test"),
        ("AWS_SECRET_ACCESS_KEY", SECRET),
        ("AWS_REGION", "us-east-1"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .to_vec()
}

fn stores(endpoint: &str, patience: Patience) -> Stores {
    Stores::new(environment(endpoint)).patience(patience)
}

/// A new bucket, made with the server's own protocol.
fn bucket(name: &str) -> String {
    use std::io::{Read as _, Write as _};
    let host = endpoint().strip_prefix("http://").unwrap().to_owned();
    let mut stream = std::net::TcpStream::connect(&host).unwrap();
    let request = format!(
        "PUT /{name} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\nConnection: close\r\n\
         Authorization: AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains(" 200 "), "{answer}");
    format!("s3://{name}")
}

#[test]
fn a_save_broken_off_at_any_request_leaves_a_whole_checkpoint() {
    let service = endpoint().strip_prefix("http://").unwrap().to_owned();
    let direct = stores(&endpoint(), LONG);
    let all = [
        (Fault::Lost, true),
        (Fault::Unanswered, true),
        (Fault::Lost, false),
        (Fault::Unanswered, false),
        (Fault::Refused, false),
    ];
    // Then one of the data files is sent in parts.
    for (name, large, ways) in [
        ("faults", 1000, &all[..]),
        ("parts", (9 << 20) / 4, &all[1..4]),
    ] {
        let subject = Subject {
            proxy: &|| Proxy::to(&service, Protocol::Http),
            ways,
            direct: &direct,
            through: &|proxy, patience| {
                Box::new(stores(&format!("http://{}", proxy.address), patience))
            },
            dir: &bucket(name),
            large,
        };
        let requests = subject.survive_every_request();
        println!(
            "a save makes {requests} requests; it survived each of them in {} ways",
            ways.len()
        );
    }
}

#[test]
fn what_is_wrong_is_told_at_once_on_one_line_without_secrets() {
    let there = bucket("wrong");
    let told = |stores: &Stores, path: &str| {
        let begin = Instant::now();
        let mut file = stores.create(path).unwrap();
        file.write(b"x").unwrap();
        let status = file.publish().unwrap_err();
        let read = stores.open(path).unwrap_err();
        for text in [&status.message, &read.message] {
            assert!(!text.contains(SECRET) && !text.contains('\n'), "{text}");
            assert!(text.starts_with(path), "{text}");
        }
        assert!(!format!("{stores:?}").contains(SECRET));
        // Two requests were made.
        assert!(
            begin.elapsed() < 2 * PROMPT,
            "{:?} for {status}",
            begin.elapsed()
        );
        status
    };
    let good = Stores::new(environment(&endpoint()));
    let status = told(&good, "s3://no-such-bucket/x");
    assert_eq!(
        status.message,
        "s3://no-such-bucket/x; there is no bucket 'no-such-bucket'"
    );
    // A port that nothing listens at, and an address that nothing answers at.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let away = Stores::new(environment(&format!("http://{port}")));
    let status = told(&away, &format!("{there}/x"));
    assert_eq!(status.code, Code::DeadlineExceeded);
    assert!(status.message.contains("refused"), "{status}");
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mute = Stores::new(environment(&format!(
        "http://{}",
        silent.local_addr().unwrap()
    )));
    let status = told(&mute, &format!("{there}/x"));
    assert!(status.message.contains("no answer within"), "{status}");
    // A server that checks credentials says so.
    for (code, expected) in [
        (
            "InvalidAccessKeyId",
            "does not accept the credentials (InvalidAccessKeyId)",
        ),
        ("AccessDenied", "Permission denied (AccessDenied)"),
    ] {
        let strict = strict_server(code);
        let wrong = Stores::new(environment(&format!("http://{strict}")));
        let status = told(&wrong, &format!("{there}/x"));
        assert_eq!(status.code, Code::PermissionDenied);
        assert!(status.message.contains(expected), "{status}");
    }
}

/// Answers every request with an error whose text repeats the key it was sent, as Amazon's does.
fn strict_server(code: &'static str) -> std::net::SocketAddr {
    use std::io::{Read as _, Write as _};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut buffer = [0; 1 << 14];
            let _ = stream.read(&mut buffer);
            let body = format!(
                "<Error><Code>{code}</Code><AWSAccessKeyId>{SECRET}</AWSAccessKeyId></Error>"
            );
            let head = "HTTP/1.1 403 Forbidden\r\nconnection: close\r\ncontent-length: ";
            let _ = write!(stream, "{head}{}\r\n\r\n{body}", body.len());
        }
    });
    address
}

#[test]
fn a_short_outage_delays_a_save_and_nothing_else() {
    let dir = bucket("outage");
    let service = endpoint().strip_prefix("http://").unwrap().to_owned();
    let proxy = Proxy::to(&service, Protocol::Http);
    let storage = Stores::new(environment(&format!("http://{}", proxy.address)));
    save(&storage, &dir, 1, 100).unwrap();
    proxy.out(true);
    std::thread::scope(|scope| {
        let saving = scope.spawn(|| save(&storage, &dir, 2, 100));
        // The save has been refused a few times before the service comes back.
        proxy.plan(usize::MAX, Fault::Lost, false);
        while proxy.count() < 5 {
            std::thread::yield_now();
        }
        assert_eq!(latest(&stores(&endpoint(), LONG), &dir, 100), 1);
        proxy.out(false);
        saving.join().unwrap().unwrap();
    });
    assert_eq!(latest(&storage, &dir, 100), 2);
}

#[test]
fn an_event_file_is_seen_to_grow_by_one_who_follows_it() {
    let dir = bucket("events");
    let storage = stores(&endpoint(), LONG);
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
}

#[test]
fn records_are_read_about_as_fast_as_the_client_reads() {
    let dir = bucket("speed");
    let storage = stores(&endpoint(), LONG);
    let path = format!("{dir}/a.tfrecord");
    let stream = storage.create_stream(&path).unwrap();
    let mut writer = RecordWriter::new(stream, Compression::None);
    let record = vec![7; 100_000];
    let count = 640;
    for _ in 0..count {
        writer.write(&record).unwrap();
    }
    writer.finish().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let raw = AmazonS3Builder::new()
        .with_endpoint(endpoint())
        .with_allow_http(true)
        .with_access_key_id("test")
        .with_secret_access_key(SECRET)
        .with_region("us-east-1")
        .with_bucket_name("speed")
        .build()
        .unwrap();
    let at = Path::from("a.tfrecord");
    let (mut ours, mut theirs) = (Duration::MAX, Duration::MAX);
    // The best of three each, in turns.
    for _ in 0..3 {
        let begin = Instant::now();
        let bytes = runtime.block_on(async { raw.get(&at).await.unwrap().bytes().await.unwrap() });
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
