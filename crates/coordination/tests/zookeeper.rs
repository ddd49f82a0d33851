//! Elections on a real ZooKeeper: `cargo xtask engines zookeeper` starts it and runs this.
#![allow(
    clippy::disallowed_methods,
    reason = "a test is told by its environment"
)]

mod common;

use downpour_coordination::{Register, ZooKeeper};
use std::net::TcpListener;
use std::time::{Duration, Instant};

fn service() -> String {
    let service = std::env::var("DOWNPOUR_TEST_ZOOKEEPER");
    service.expect("run by `cargo xtask engines zookeeper`, which names the service")
}

fn open(hosts: &str, path: &str) -> Box<dyn Register> {
    Box::new(ZooKeeper::open(hosts, path, common::LEASE / 4).unwrap())
}

#[test]
fn a_register_changes_only_from_the_version_that_was_named() {
    let register = ZooKeeper::open(&service(), "registers", Duration::from_secs(5)).unwrap();
    common::swaps(&register);
}

#[test]
fn one_chief_at_a_time_through_kills_cuts_and_loss_of_the_service() {
    common::elections(&service(), open, 50);
}

#[test]
fn a_service_that_is_not_there_is_one_line_within_seconds() {
    // Nobody listens there any more.
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    // And here somebody listens who never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    for address in [free, silent.local_addr().unwrap()] {
        let begin = Instant::now();
        let url = format!("zk://{address}/job").parse().unwrap();
        let error = downpour_coordination::open(&url, common::LEASE)
            .err()
            .unwrap()
            .to_string();
        assert!(
            error.contains(&address.to_string()) && !error.contains('\n'),
            "{error}"
        );
        // Bounded by the client's own deadline of 3 s, not by a retry that goes on.
        assert!(begin.elapsed() < Duration::from_secs(60), "{error}");
    }
}
