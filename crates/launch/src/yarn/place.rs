//! The containers of an application as a place for tasks: each task has a container of its own, and listens on a port that the agent in
//! it has found.

use super::LEASE;
use super::master::{Shared, YarnMaster};
use crate::engine::{Outlet, Placed};
use crate::framed::{self, Link, Reach};
use crate::frames::{self, Frame, Request};
use crate::remote::{Ending, Reins, Site, Task, spread};
use crate::spec::JobSpec;
use crate::state::Exit;
use crate::supervise;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufReader, Read};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long an agent may take to be there again.
const AGENT_WITHIN: Duration = Duration::from_secs(20);
/// Added to a lease before a task counts as ended.
const MARGIN: Duration = Duration::from_secs(2);
/// More ports than one are asked for, because agents on one node do not know of each other.
const SPARE_PORTS: u32 = 8;
/// What YARN says of a container whose node is lost: nobody knows whether it still runs.
const LOST_NODE: i32 = -100;

/// A container's name, of what tasks call their host.
fn container(host: &str) -> &str {
    host.split(' ').next().unwrap_or_default()
}

/// Asks what runs in a container.
fn ask(shared: &Shared, id: &str, request: &Request, within: Duration) -> io::Result<Frame> {
    let (number, mut stream) = shared.take(id, Instant::now() + within)?;
    let answered = || -> io::Result<Frame> {
        stream.set_read_timeout(Some(within))?;
        frames::say(&mut stream, request)?;
        let mut from = BufReader::new(&stream);
        frames::await_greeting(&mut from)?;
        frames::read(&mut from)?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    };
    let mut answered = answered;
    let answer = answered();
    shared.put_away(id, number);
    answer
}

impl YarnMaster {
    fn ports(
        &self,
        host: &str,
        count: u32,
        taken: &mut BTreeSet<(String, u16)>,
    ) -> Result<Vec<u16>, String> {
        let id = container(host);
        let answer = ask(
            &self.0,
            id,
            &Request::Ports(count + SPARE_PORTS),
            AGENT_WITHIN,
        );
        let Ok(Frame::Ports(found)) = answer else {
            return Err(format!("{host} gave no ports"));
        };
        let node = self.address(host);
        let free = found
            .into_iter()
            .filter(|port| taken.insert((node.clone(), *port)));
        Ok(free.take(count as usize).collect())
    }

    fn address(&self, host: &str) -> String {
        let state = self.0.state.lock();
        state
            .containers
            .get(container(host))
            .map(|c| c.host().to_owned())
            .unwrap_or_default()
    }
}

impl Site for YarnMaster {
    fn server(&self) -> String {
        supervise::OWN.to_owned()
    }

    fn place(&self, spec: &JobSpec, _lost: &BTreeSet<String>) -> Result<Placed, String> {
        let wanted: BTreeMap<String, u32> = spec
            .tasks
            .iter()
            .map(|(role, group)| (role.clone(), group.count))
            .collect();
        let found = self.0.gather(wanted)?;
        let mut hosts = Vec::new();
        for role in crate::spec::JOBS {
            for id in found.get(role).into_iter().flatten() {
                let state = self.0.state.lock();
                let node = state
                    .gang
                    .slot(id)
                    .map(|slot| slot.node.clone())
                    .unwrap_or_default();
                hosts.push(format!("{id} on {node}"));
            }
        }
        // As many as there are tasks: each has one.
        let taken = parking_lot::Mutex::new(BTreeSet::new());
        spread(
            spec,
            &hosts,
            |host| self.address(host),
            |host, count| self.ports(host, count, &mut taken.lock()),
        )
    }

    fn conduct(&self, task: &Task, reins: &Reins, outlet: &Outlet) -> Ending {
        framed::conduct(self, task, reins, outlet)
    }

    /// Containers go when the application is over.
    fn clean_up(&self, _job: &str, _run: &str) {}
}

impl Reach for YarnMaster {
    fn connect(&self, task: &Task) -> io::Result<Link> {
        let id = container(&task.host).to_owned();
        let (number, stream) = self.0.take(&id, Instant::now() + AGENT_WITHIN)?;
        // It asks for leases more often than that.
        stream.set_read_timeout(Some(LEASE))?;
        stream.set_write_timeout(Some(LEASE))?;
        let shared = self.0.clone();
        Ok(Link {
            input: Box::new(stream.try_clone()?),
            output: Box::new(Silent(stream)),
            close: Box::new(move || {
                shared.put_away(&id, number);
                String::new()
            }),
        })
    }

    /// Tasks end with their connections.
    fn lease(&self) -> Option<Duration> {
        None
    }

    /// An agent that is there again tells the end of a connection from that of its container.
    fn judge(&self, task: &Task, said: &str) -> Ending {
        let id = container(&task.host);
        // The task ends by itself by then, wherever it is.
        let until = Instant::now() + LEASE + task.drain + MARGIN;
        let shared: &Arc<Shared> = &self.0;
        loop {
            {
                let mut state = shared.state.lock();
                match state.containers.get(id) {
                    None => return Ending::HostLost(said.to_owned()),
                    Some(found) => match &found.gone {
                        Some((status, reason)) if *status != LOST_NODE => {
                            return Ending::HostLost(reason.clone());
                        }
                        Some((_, reason)) if Instant::now() >= until => {
                            return Ending::HostLost(reason.clone());
                        }
                        _ if Instant::now() >= until => {}
                        None if found.has_idle() => {}
                        _ => {
                            shared.changed.wait_until(&mut state, until);
                            continue;
                        }
                    },
                }
            }
            let now = Instant::now();
            if now < until && ask(shared, id, &Request::Check, until - now).is_ok() {
                return Ending::Exited(Exit::Signal(9));
            }
            if Instant::now() >= until {
                let reason = format!("what runs in its container cannot be heard: {said}");
                shared.give_up(id, &reason);
                return Ending::HostLost(reason);
            }
        }
    }
}

/// A connection whose silence is told as such.
struct Silent(TcpStream);

impl Read for Silent {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer).map_err(|e| match e.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => io::Error::new(
                io::ErrorKind::TimedOut,
                format!("silent for {} s", LEASE.as_secs()),
            ),
            _ => e,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_begins_with_its_container() {
        assert_eq!(
            container("container_1_0001_01_000002 on n1:8041"),
            "container_1_0001_01_000002"
        );
        assert_eq!(container(""), "");
    }
}
