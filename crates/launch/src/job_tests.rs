//! The rules of a job, played through with made-up time.

use crate::job::{Effect, Event, Job, Outcome, Rules};
use crate::{Exit, JobPhase, JobState, RestartPolicy, TaskName, TaskPhase, TaskRole, TaskState};
use std::time::{Duration, SystemTime};

/// A job of these processes, with a budget of two restarts.
fn job(names: &[&str], change: impl FnOnce(&mut Rules)) -> Played {
    let tasks = names.iter().map(|name| {
        let name = TaskName::parse(name).unwrap();
        TaskState {
            role: match name.job.as_str() {
                "ps" => TaskRole::Server,
                "evaluator" => TaskRole::Evaluator,
                _ => TaskRole::Trainer,
            },
            log: name.log_file().into(),
            name,
            address: None,
            host: None,
            command: Vec::new(),
            phase: TaskPhase::Waiting,
            since: Duration::ZERO,
            pid: None,
            starts: 0,
            exit: None,
        }
    });
    let mut rules = Rules {
        restart: RestartPolicy {
            limit: 2,
            backoff: Duration::from_secs(1),
            ..RestartPolicy::default()
        },
        drain: Duration::from_secs(10),
        evaluator_wait: Duration::from_secs(100),
        done_with_chief: false,
        chief: names.iter().position(|n| *n == "worker:0"),
        kills: Vec::new(),
    };
    change(&mut rules);
    let state = JobState {
        name: "test".to_owned(),
        phase: JobPhase::Starting,
        started: SystemTime::UNIX_EPOCH,
        ended: None,
        dir: "/nowhere".into(),
        train_dir: None,
        cluster: downpour_cluster::ClusterSpec::default(),
        tasks: tasks.collect(),
        happenings: Default::default(),
        forgotten: 0,
        version: 0,
    };
    Played {
        job: Job::new(rules, state),
        now: Duration::ZERO,
    }
}

struct Played {
    job: Job,
    now: Duration,
}

impl Played {
    fn step(&mut self, event: Event) -> Vec<Effect> {
        let mut out = Vec::new();
        self.job.step(self.now, event, &mut out);
        out
    }

    fn at(&mut self, seconds: u64) -> Vec<Effect> {
        self.now = Duration::from_secs(seconds);
        self.step(Event::Tick)
    }

    fn up(&mut self, id: usize) -> Vec<Effect> {
        let mut out = self.step(Event::Started(id, Some(100 + id as u32)));
        out.extend(self.step(Event::Ready(id)));
        out
    }

    fn exit(&mut self, id: usize, code: i32) -> Vec<Effect> {
        self.step(Event::Exited(id, Exit::Code(code), None))
    }

    fn phase(&self, id: usize) -> TaskPhase {
        self.job.state().tasks[id].phase
    }

    /// ps:0, worker:0 and worker:1 at work.
    fn training(change: impl FnOnce(&mut Rules)) -> Played {
        let mut job = job(&["ps:0", "worker:0", "worker:1"], change);
        assert_eq!(job.step(Event::Begin), [Effect::Start(0)]);
        assert_eq!(job.up(0), [Effect::Start(1), Effect::Start(2)]);
        job.up(1);
        job.up(2);
        assert_eq!(job.job.state().phase, JobPhase::Running);
        job
    }
}

#[test]
fn programs_start_when_servers_listen_and_servers_end_when_programs_are_done() {
    let mut job = Played::training(|_| ());
    assert_eq!(job.exit(1, 0), []);
    assert_eq!(job.exit(2, 0), [Effect::Terminate(0)]);
    assert_eq!(job.job.outcome(), None);
    assert_eq!(job.exit(0, 0), []);
    assert_eq!(job.job.outcome(), Some(Outcome::Done));
    assert_eq!(job.phase(0), TaskPhase::Stopped);
}

/// Places on other hosts for the three tasks of [`Played::training`].
fn placed() -> Event {
    let seat = |n: u32| crate::Seat {
        host: Some("n2".to_owned()),
        address: Some(format!("n2:{n}")),
        command: vec!["x".to_owned()],
    };
    let cluster = downpour_cluster::ClusterSpec::default();
    Event::Placed((0..3).map(seat).collect(), cluster)
}

#[test]
fn when_a_host_is_lost_all_tasks_end_and_begin_again_elsewhere() {
    let mut job = Played::training(|_| ());
    let lost = || Event::HostLost(0, "silent".to_owned());
    assert_eq!(
        job.step(lost()),
        [Effect::Terminate(1), Effect::Terminate(2)]
    );
    assert_eq!(job.job.state().phase, JobPhase::Moving);
    // Another task of that host.
    assert_eq!(job.step(Event::HostLost(1, "silent".to_owned())), []);
    assert_eq!(job.exit(2, 143), [Effect::Place]);
    assert_eq!(job.step(placed()), [Effect::Start(0)]);
    assert_eq!(job.job.state().tasks[0].address.as_deref(), Some("n2:0"));
    assert_eq!(job.up(0), [Effect::Start(1), Effect::Start(2)]);
    assert_eq!(job.job.state().phase, JobPhase::Running);
}

#[test]
fn who_is_done_does_not_move() {
    let mut job = Played::training(|_| ());
    assert_eq!(job.exit(1, 0), []);
    job.step(Event::HostLost(2, "silent".to_owned()));
    job.at(1);
    assert_eq!(job.exit(0, 0), [Effect::Place]);
    assert_eq!(job.step(placed()), [Effect::Start(0)]);
    assert_eq!(job.up(0), [Effect::Start(2)]);
}

#[test]
fn what_does_not_end_to_move_is_killed() {
    let mut job = Played::training(|_| ());
    job.step(Event::HostLost(0, "silent".to_owned()));
    assert_eq!(job.at(9), []);
    assert_eq!(job.at(10), [Effect::Kill(1), Effect::Kill(2)]);
}

#[test]
fn without_a_place_or_a_budget_a_lost_host_ends_the_job() {
    let mut job = Played::training(|_| ());
    job.step(Event::HostLost(0, "silent".to_owned()));
    job.exit(1, 0);
    assert_eq!(job.exit(2, 0), [Effect::Place]);
    job.step(Event::NotPlaced("no host is left".to_owned()));
    let outcome = job.job.outcome();
    assert!(matches!(outcome, Some(Outcome::NotStarted(_, reason)) if reason == "no host is left"));

    let mut job = Played::training(|rules| rules.restart.limit = 0);
    let asked = job.step(Event::HostLost(0, "silent".to_owned()));
    assert_eq!(asked, [Effect::Terminate(1), Effect::Terminate(2)]);
    assert_eq!(job.job.state().phase, JobPhase::Ending);
}

#[test]
fn a_server_that_does_not_listen_is_ended_and_tried_again() {
    let mut job = job(&["ps:0", "worker:0"], |_| ());
    job.step(Event::Begin);
    job.step(Event::Started(0, Some(1)));
    assert_eq!(job.at(59), []);
    assert_eq!(job.at(60), [Effect::Kill(0)]);
    job.step(Event::Exited(0, Exit::Signal(9), None));
    assert_eq!(job.at(61), [Effect::Start(0)]);
    assert_eq!(job.up(0), [Effect::Start(1)]);
}

#[test]
fn a_lost_task_comes_back_after_a_pause() {
    let mut job = Played::training(|_| ());
    assert_eq!(job.exit(2, 1), []);
    assert_eq!(job.phase(2), TaskPhase::BackOff);
    assert_eq!(job.job.deadline(), Some(Duration::from_secs(1)));
    assert_eq!(job.at(1), [Effect::Start(2)]);
    job.up(2);
    assert_eq!(job.job.state().tasks[2].restarts(), 1);
    let texts: Vec<_> = job.job.state().happenings.iter().map(|h| &h.text).collect();
    assert!(
        texts
            .iter()
            .any(|t| *t == "ended with exit code 1; starts again in 1.0 s"),
        "{texts:?}"
    );
}

#[test]
fn a_server_comes_back_even_if_it_ended_well() {
    let mut job = Played::training(|_| ());
    job.exit(0, 0);
    assert_eq!(job.at(1), [Effect::Start(0)]);
}

#[test]
fn a_task_that_keeps_failing_ends_the_job_with_its_code() {
    let mut job = Played::training(|rules| rules.restart.alike = 0);
    for at in [1, 3] {
        job.exit(2, 7);
        assert_eq!(job.at(at), [Effect::Start(2)]);
        job.up(2);
    }
    assert_eq!(job.exit(2, 7), [Effect::Terminate(1)]);
    assert_eq!(
        job.step(Event::Exited(1, Exit::Signal(15), None)),
        [Effect::Terminate(0)]
    );
    job.exit(0, 0);
    let outcome = job.job.outcome().unwrap();
    assert_eq!(
        (outcome.clone(), outcome.code()),
        (Outcome::Failed(2, Exit::Code(7)), 7)
    );
}

#[test]
fn wrong_usage_is_not_tried_again() {
    let mut job = Played::training(|_| ());
    assert_eq!(job.exit(1, 2), [Effect::Terminate(2)]);
    assert_eq!(job.phase(1), TaskPhase::Failed);
}

#[test]
fn a_program_that_fails_at_once_or_twice_alike_is_started_twice_and_not_six_times() {
    let fails = |lived: u64, words: [&str; 2]| {
        let mut job = Played::training(|rules| rules.restart.limit = 5);
        let mut now = 0;
        for (i, word) in words.iter().enumerate() {
            now += lived;
            job.now = Duration::from_secs(now);
            let gone = Event::Exited(2, Exit::Code(1), Some((*word).to_owned()));
            let effects = job.step(gone);
            if i == 1 {
                return (effects, job.phase(2), job.job.state().tasks[2].starts);
            }
            now += 1;
            assert_eq!(job.at(now), [Effect::Start(2)]);
            job.up(2);
        }
        unreachable!()
    };
    let ended = (vec![Effect::Terminate(1)], TaskPhase::Failed, 2);
    assert_eq!(fails(1, ["at 17:03 no such file", "something else"]), ended);
    assert_eq!(fails(60, ["at 17:03 NaN", "at 17:04 NaN"]), ended);
    // Another fault after some work is another matter.
    assert_eq!(fails(60, ["a", "b"]), (vec![], TaskPhase::BackOff, 2));
}

#[test]
fn what_does_not_end_is_killed() {
    let mut job = Played::training(|_| ());
    job.exit(1, 0);
    job.exit(2, 0);
    assert_eq!(job.at(9), []);
    assert_eq!(job.at(10), [Effect::Kill(0)]);
    job.step(Event::Exited(0, Exit::Signal(9), None));
    assert_eq!(job.job.outcome(), Some(Outcome::Done));
}

#[test]
fn one_interrupt_asks_and_the_next_kills() {
    let mut job = Played::training(|_| ());
    let all = [0, 1, 2];
    assert_eq!(job.step(Event::Interrupt(2)), [1, 2].map(Effect::Terminate));
    // The same request, to the process and to its group.
    assert_eq!(job.step(Event::Interrupt(2)), []);
    job.now = Duration::from_secs(1);
    assert_eq!(job.step(Event::Interrupt(2)), all.map(Effect::Kill));
    job.now = Duration::from_secs(2);
    assert_eq!(job.step(Event::Interrupt(2)), all.map(Effect::Kill));
    for id in all {
        job.step(Event::Exited(id, Exit::Signal(9), None));
    }
    assert_eq!(job.job.outcome().unwrap().code(), 130);
}

#[test]
fn programs_end_before_the_servers_through_which_they_save() {
    let mut job = Played::training(|_| ());
    let asked = job.step(Event::Interrupt(15));
    assert_eq!(asked, [Effect::Terminate(1), Effect::Terminate(2)]);
    assert_eq!(job.exit(1, 0), []);
    assert_eq!(job.exit(2, 0), [Effect::Terminate(0)]);
    job.exit(0, 0);
    assert_eq!(job.job.outcome().unwrap().code(), 143);
    // Those who take too long to save are killed, and the servers with them.
    let mut slow = Played::training(|_| ());
    slow.step(Event::Interrupt(15));
    assert_eq!(slow.at(9), []);
    assert_eq!(slow.at(10), [0, 1, 2].map(Effect::Kill));
}

#[test]
fn an_interrupt_during_a_pause_starts_nothing_again() {
    let mut job = Played::training(|_| ());
    job.exit(2, 1);
    job.step(Event::Interrupt(15));
    assert_eq!(job.phase(2), TaskPhase::Stopped);
    assert_eq!(job.at(1), []);
    job.exit(0, 0);
    job.exit(1, 0);
    assert_eq!(job.job.outcome().unwrap().code(), 143);
}

#[test]
fn an_interrupt_after_the_training_does_not_undo_it() {
    let mut job = Played::training(|_| ());
    job.exit(1, 0);
    job.exit(2, 0);
    job.step(Event::Interrupt(2));
    job.exit(0, 0);
    assert_eq!(job.job.outcome(), Some(Outcome::Done));
}

#[test]
fn a_process_started_while_the_job_ends_is_ended_too() {
    let mut job = Played::training(|_| ());
    job.exit(2, 1);
    assert_eq!(job.at(1), [Effect::Start(2)]);
    let asked = job.step(Event::Interrupt(2));
    assert!(asked.contains(&Effect::Terminate(2)), "{asked:?}");
    // Its start is reported only now.
    job.step(Event::Started(2, Some(9)));
    assert_eq!(job.phase(2), TaskPhase::Stopping);
}

#[test]
fn a_missing_program_ends_the_job_at_once() {
    let mut job = job(&["ps:0", "worker:0"], |_| ());
    job.step(Event::Begin);
    job.up(0);
    let effects = job.step(Event::NotStarted(1, "no such file".to_owned()));
    assert_eq!(effects, [Effect::Terminate(0)]);
    job.exit(0, 0);
    assert_eq!(job.job.outcome().unwrap().code(), 2);
}

#[test]
fn the_chiefs_end_may_be_the_jobs() {
    let mut job = Played::training(|rules| rules.done_with_chief = true);
    assert_eq!(job.exit(1, 0), [Effect::Terminate(2)]);
    assert_eq!(job.exit(2, 1), [Effect::Terminate(0)]);
    job.exit(0, 0);
    assert_eq!(job.job.outcome(), Some(Outcome::Done));
}

#[test]
fn a_task_is_killed_on_demand_and_comes_back() {
    let mut job = Played::training(|rules| rules.kills = vec![(0, Duration::from_secs(5))]);
    assert_eq!(job.at(4), []);
    assert_eq!(job.at(5), [Effect::Kill(0)]);
    job.step(Event::Exited(0, Exit::Signal(9), None));
    assert_eq!(job.at(6), [Effect::Start(0)]);
    let text = &job.job.state().happenings.back().unwrap().text;
    assert!(text.contains("as was asked for"), "{text}");
}

#[test]
fn an_evaluator_may_end_later_and_does_not_stop_the_training_when_it_fails() {
    let names = ["ps:0", "worker:0", "evaluator:0"];
    let mut waited = job(&names, |_| ());
    waited.step(Event::Begin);
    waited.up(0);
    waited.up(1);
    waited.up(2);
    assert_eq!(waited.exit(1, 0), []);
    assert_eq!(waited.exit(2, 0), [Effect::Terminate(0)]);
    waited.exit(0, 0);
    assert_eq!(waited.job.outcome(), Some(Outcome::Done));

    let mut failing = job(&names, |rules| rules.restart.limit = 0);
    failing.step(Event::Begin);
    failing.up(0);
    failing.up(1);
    failing.up(2);
    assert_eq!(failing.exit(2, 3), []);
    assert_eq!(failing.exit(1, 0), [Effect::Terminate(0)]);
    failing.exit(0, 0);
    assert_eq!(failing.job.outcome().unwrap().code(), 3);
}

#[test]
fn a_cluster_without_programs_stays_until_interrupted() {
    let mut job = job(&["ps:0"], |_| ());
    job.step(Event::Begin);
    assert_eq!(job.up(0), []);
    assert_eq!(job.at(1000), []);
    assert_eq!(job.step(Event::Interrupt(2)), [Effect::Terminate(0)]);
}

#[test]
fn only_so_much_is_remembered() {
    let mut job = Played::training(|_| ());
    for _ in 0..1100 {
        job.step(Event::Kill(1));
    }
    let state = job.job.state();
    let all = state.forgotten + state.happenings.len() as u64;
    assert_eq!((state.happenings.len(), all), (crate::MAX_HAPPENINGS, 1103));
}
