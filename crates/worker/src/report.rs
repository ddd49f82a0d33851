//! What a worker says of itself to whoever watches the cluster. Asked about once a second; nothing
//! here is on the way of a step.

use crate::Worker;
use crate::parameters::{Parameters, global_step};
use crate::trainings::trainings;
use downpour_net::Task;
use downpour_runtime::{STALENESS_FROM, StalenessFacts, VariableFacts};
use downpour_wire::control::{
    DeviceReport, MemberReport, PeerReport, SessionReport, StalenessReport, TaskReport,
    VariableReport, VariableTotals,
};

/// Most variables that a report names; the largest ones.
const MAX_VARIABLES: usize = 2000;

impl Worker {
    /// Fills in the worker's part of its task's report.
    pub fn report(&self, report: &mut TaskReport) {
        report.task = self.config.name.clone();
        report.incarnation = self.config.device.incarnation;
        report.runs = Some(self.machine.runs());
        report.devices = self
            .devices()
            .into_iter()
            .map(|device| DeviceReport {
                name: device.name,
                device_type: device.device_type,
                incarnation: device.incarnation,
            })
            .collect();
        let attendance = self.attendance();
        let has_left = |task: &str| {
            attendance
                .masters
                .get(task)
                .is_some_and(|open| open.is_empty())
        };
        let tasks = self.config.peers.tasks();
        report.members = tasks
            .map(|(task, address)| MemberReport {
                task: task.to_owned(),
                address: address.to_owned(),
                has_left: has_left(task),
            })
            .collect();
        for (master, handles) in attendance.masters {
            // An unnamed master is the one of this task.
            let own = master.is_empty() || master == self.config.name;
            for handle in handles.into_iter().filter(|_| !own) {
                report.guests.push(SessionReport {
                    handle,
                    master: master.clone(),
                    uses: 0,
                    client_is_there: true,
                });
            }
        }
        let counts = self.config.peers.traffic().counts().into_iter();
        let others = counts.filter(|lane| lane.task != self.config.name);
        report.peers = others
            .map(|lane| PeerReport {
                task: lane.task,
                bytes_sent: lane.bytes_sent,
                bytes_received: lane.bytes_received,
                tensors_sent: lane.tensors_sent,
                tensors_received: lane.tensors_received,
                waiting: lane.waiting,
            })
            .collect();
        let resources = &self.config.device.resources;
        let variables = resources.variables();
        let names = variables.iter().map(|(c, n, _)| (c.as_str(), n.as_str()));
        report.global_step = global_step(resources, names.clone());
        report.trainings = trainings(resources, names);
        report.writers = self.writers.report();
        report_variables(variables, report);
    }
}

/// What is said of the staleness of a variable's or a writer's updates.
pub(crate) fn staleness(facts: &StalenessFacts, classes: bool) -> StalenessReport {
    StalenessReport {
        updates: facts.updates(),
        total: facts.total,
        worst: facts.worst,
        classes: match classes {
            true => facts.counts.to_vec(),
            false => Vec::new(),
        },
    }
}

fn report_variables(variables: Vec<(String, String, VariableFacts)>, report: &mut TaskReport) {
    let mut totals = VariableTotals::default();
    let mut counts = vec![0; STALENESS_FROM.len()];
    let mut list = Vec::with_capacity(variables.len());
    let parameters = Parameters::among(&variables);
    for (container, name, facts) in &variables {
        if parameters.has(container, name, facts) {
            totals.parameters += 1;
            totals.parameter_bytes += facts.bytes as u64;
        }
    }
    for (container, name, facts) in variables {
        totals.count += 1;
        totals.bytes += facts.bytes as u64;
        totals.updates += facts.updates;
        for (sum, n) in counts.iter_mut().zip(facts.staleness.counts) {
            *sum += n;
        }
        let (dtype, shape) = match &facts.contents {
            Some((dtype, shape)) => (
                dtype.to_string(),
                shape.dims().iter().map(|&d| d as i64).collect(),
            ),
            None => (String::new(), Vec::new()),
        };
        list.push(VariableReport {
            container,
            name,
            dtype,
            shape,
            bytes: facts.bytes as u64,
            updates: facts.updates,
            is_initialized: facts.is_initialized,
            staleness: Some(staleness(&facts.staleness, false)),
        });
    }
    // Stable: those of equal size stay in the order of their names.
    list.sort_by_key(|v| std::cmp::Reverse(v.bytes));
    list.truncate(MAX_VARIABLES);
    report.variables = list;
    report.variable_totals = Some(totals);
    report.staleness = counts;
    report.staleness_from = STALENESS_FROM.to_vec();
}
