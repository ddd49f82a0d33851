//! Pins the thread that reads a task's lanes, when as many tasks of its cluster as there are cores share a host.
//!
//! Left to the scheduler, two workers may share a core for seconds while a parameter server has one to itself: a thread that
//! spins seems busy, and a thread that is woken stays where it was. So each task has a core by the cluster's order, which all
//! of them know. Its own thread is pinned there until a program with work of its own shows on it; a client's thread, which
//! may start others that would inherit its affinity, is only moved there now and then.

use downpour_cluster::ClusterSpec;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use std::marker::PhantomData;
use std::sync::OnceLock;

/// Where the process might run when its first task began.
static ALLOWED: OnceLock<CpuSet> = OnceLock::new();

/// Which of the cores is a task's, for each number of cores.
pub(crate) struct Affinity {
    /// How many tasks of each job are on this host, and which of them this one is: job and place in it.
    jobs: Vec<usize>,
    own: (usize, usize),
}

impl Affinity {
    /// That of a task, as every task of the cluster computes it.
    pub(crate) fn of(cluster: &ClusterSpec, job: &str, task: u32) -> Option<Affinity> {
        let host = |address: &'_ str| address.rsplit_once(':').map(|(host, _)| host.to_owned());
        let here = host(cluster.address(job, task).ok()?)?;
        let (mut jobs, mut own) = (Vec::new(), None);
        for (name, tasks) in cluster.jobs() {
            let tasks = tasks
                .iter()
                .filter(|(_, at)| host(at) == Some(here.clone()));
            let tasks: Vec<u32> = tasks.map(|(index, _)| *index).collect();
            if name == job {
                own = Some((jobs.len(), tasks.iter().position(|t| *t == task)?));
            }
            jobs.push(tasks.len());
        }
        if let Ok(allowed) = sched_getaffinity(None) {
            let _ = ALLOWED.set(allowed);
        }
        Some(Affinity { jobs, own: own? })
    }

    /// Pins the calling thread to its core, if there is one for it, until what comes back is dropped.
    pub(crate) fn pin(&self) -> Option<Pinned> {
        let (allowed, only) = self.core()?;
        // Where the system refuses, it knows better.
        sched_setaffinity(None, &only).ok()?;
        Some(Pinned {
            allowed,
            of_one_thread: PhantomData,
        })
    }

    /// Moves the calling thread to its core; the scheduler may move it again.
    pub(crate) fn move_here(&self) {
        let Some((allowed, only)) = self.core() else {
            return;
        };
        if !only.is_set(sched_getcpu()) && sched_setaffinity(None, &only).is_ok() {
            let _ = sched_setaffinity(None, &allowed);
        }
    }

    /// Where the calling thread may run, and its core.
    fn core(&self) -> Option<(CpuSet, CpuSet)> {
        let allowed = sched_getaffinity(None).ok()?;
        let mut cores = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
        let core = self.among(allowed.count() as usize)?;
        let mut only = CpuSet::new();
        only.set(cores.nth(core)?);
        Some((allowed, only))
    }

    /// Which of so many cores: that with the fewest tasks of the own job, then with the fewest tasks. With cores to
    /// spare the system does well by itself.
    fn among(&self, cores: usize) -> Option<usize> {
        if cores < 2 || self.jobs.iter().sum::<usize>() < cores {
            return None;
        }
        let mut all = vec![0; cores];
        for (job, tasks) in self.jobs.iter().enumerate() {
            let mut own = vec![0; cores];
            for place in 0..*tasks {
                let load = |core: &usize| (own[*core], all[*core]);
                // The first tasks of jobs, which mostly do more, are kept apart.
                let core = match job % 2 {
                    0 => (0..cores).min_by_key(load)?,
                    _ => (0..cores).rev().min_by_key(load)?,
                };
                own[core] += 1;
                all[core] += 1;
                if (job, place) == self.own {
                    return Some(core);
                }
            }
        }
        None
    }
}

/// A pinned thread; dropping this unpins it.
pub(crate) struct Pinned {
    allowed: CpuSet,
    of_one_thread: PhantomData<*const ()>,
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // Cores that are not there any more are left out by the system.
        let _ = sched_setaffinity(None, &self.allowed);
    }
}

/// Lets the calling thread run wherever the process may: threads inherit the affinity of a pinned thread that starts them.
pub(crate) fn unpin() {
    if let Some(allowed) = ALLOWED.get() {
        let _ = sched_setaffinity(None, allowed);
    }
}

/// Pins the calling thread, the `i`-th of `threads`, to a core of its own if there are just as many: a busy scheduler queues
/// threads that are woken together behind each other, beside a free core.
pub(crate) fn pin_nth(i: usize, threads: usize) {
    let Ok(allowed) = sched_getaffinity(None) else {
        return;
    };
    let mut cores = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
    if allowed.count() as usize == threads
        && let Some(core) = cores.nth(i)
    {
        let mut only = CpuSet::new();
        only.set(core);
        // Where the system refuses, it knows better.
        let _ = sched_setaffinity(None, &only);
    }
}

/// Keeps the calling thread, just started by a busy one, off that one's core.
pub(crate) fn avoid_this_core() {
    let mut others = match (ALLOWED.get(), sched_getaffinity(None)) {
        (Some(allowed), _) => *allowed,
        (None, Ok(allowed)) => allowed,
        _ => return,
    };
    others.unset(sched_getcpu());
    if others.count() > 0 {
        // Where the system refuses, it knows better.
        let _ = sched_setaffinity(None, &others);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cores of all tasks of a cluster that are on the host `a`.
    fn cores(cluster: &str, cores: usize) -> Vec<Option<usize>> {
        let cluster = ClusterSpec::from_json(cluster).unwrap();
        let here = cluster.tasks().filter(|(_, _, at)| at.starts_with("a:"));
        let affinities = here.map(|(job, task, _)| Affinity::of(&cluster, job, task).unwrap());
        affinities.map(|affinity| affinity.among(cores)).collect()
    }

    #[test]
    fn tasks_of_a_job_are_kept_apart_and_so_are_the_first_of_jobs() {
        let two_and_two = r#"{"ps": ["a:1", "a:2"], "worker": ["a:3", "a:4"]}"#;
        let all = |list: &[usize]| list.iter().map(|c| Some(*c)).collect::<Vec<_>>();
        assert_eq!(cores(two_and_two, 2), all(&[0, 1, 1, 0]));
        assert_eq!(cores(two_and_two, 4), all(&[0, 1, 3, 2]));
        // With cores to spare, or one, nobody is moved.
        assert_eq!(cores(two_and_two, 5), [None; 4]);
        assert_eq!(cores(two_and_two, 1), [None; 4]);
        let one_and_one = r#"{"ps": ["a:1"], "worker": ["a:2"]}"#;
        assert_eq!(cores(one_and_one, 2), all(&[0, 1]));
        let one_and_two = r#"{"ps": ["a:1"], "worker": ["a:2", "a:3"]}"#;
        assert_eq!(cores(one_and_two, 2), all(&[0, 1, 0]));
        // Only those of the own host count.
        let spread = r#"{"ps": ["a:1", "b:1"], "worker": ["b:2", "a:2"]}"#;
        assert_eq!(cores(spread, 2), all(&[0, 1]));
        assert_eq!(cores(r#"{"worker": ["a:1", "b:1"]}"#, 2), [None]);
    }

    #[test]
    fn a_thread_stays_on_its_core_until_it_is_unpinned() {
        let all = sched_getaffinity(None).unwrap();
        let tasks = all.count() as usize;
        if tasks < 2 {
            return;
        }
        let last = (0..CpuSet::MAX_CPU).rev().find(|c| all.is_set(*c));
        let affinity = Affinity {
            jobs: vec![tasks],
            own: (0, tasks - 1),
        };
        let thread = std::thread::spawn(move || {
            affinity.move_here();
            assert_eq!(sched_getaffinity(None).unwrap(), all);
            let pinned = affinity.pin();
            assert_eq!(Some(sched_getcpu()), last);
            assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
            drop(pinned);
            assert_eq!(sched_getaffinity(None).unwrap(), all);
        });
        thread.join().unwrap();
    }
}
