//! What the planner makes of graphs, as text: `testdata/*.txt` (see `downpour-script`). A command works on what the
//! one before it left.
//!
//! | command | prints |
//! |---|---|
//! | `graph` | nothing, or why the graph is refused; the lines below it are the graph |
//! | `lower [inline]` | the graph without functional branches, loops and, with `inline`, calls |
//! | `place tasks=job:N,… [soft]` | the graph with a device for each node |
//! | `request [feeds=…] [fetches=…] [targets=…] [partial]` | what is left of the graph for a request |
//! | `merge`, `unused`, `signals [targets=…]` | the graph without nodes that compute the same, without values nobody reads, with shorter control edges |
//! | `partition tasks=job:N,… [pulled]` | each task's part; the graph stays whole |

use downpour_graph::{DeviceName, Graph, Result};
use downpour_plan::{
    DeviceRef, Endpoints, Placement, Request, lower, merge_common, partition, place, rewrite,
    shorten_signals, skip_unused,
};
use downpour_script::{Command, check_folder, parse, show};
use std::path::Path;

#[test]
fn scripts_print_what_they_say() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    check_folder(&folder, || {
        let mut graph = Graph::default();
        move |command: &Command| match answer(command, &mut graph) {
            Ok(printed) => printed,
            Err(e) => format!("{}: {}", e.code.name(), e.message),
        }
    });
}

fn answer(command: &Command, graph: &mut Graph) -> Result<String> {
    let targets = command.values("targets");
    *graph = match command.name.as_str() {
        "graph" => match parse(&command.body) {
            Ok(new) => {
                *graph = new;
                return Ok(String::new());
            }
            Err(e) => return Ok(e),
        },
        "lower" => lower(graph.clone(), 0, command.has("inline")),
        "place" => {
            let devices = tasks(command).into_iter().map(|(name, _)| name);
            let placement = Placement {
                devices: devices.collect(),
                allow_soft_placement: command.has("soft"),
            };
            let mut placed = graph.clone();
            place(&mut placed, &placement)?;
            placed
        }
        "request" => {
            let request = Request {
                feeds: command.values("feeds"),
                fetches: command.values("fetches"),
                targets,
            };
            let ends = match command.has("partial") {
                true => Endpoints::Rendezvous {
                    device: "/job:client/replica:0/task:0/device:CPU:0".to_owned(),
                    incarnation: 1,
                },
                false => Endpoints::Positional,
            };
            rewrite(graph, &request, &ends)?.0
        }
        "merge" => merge_common(graph, &targets),
        "unused" => skip_unused(graph, &targets),
        "signals" => shorten_signals(graph, &targets),
        "partition" => return parts(command, graph),
        other => panic!("no command '{other}'"),
    };
    Ok(show(graph))
}

/// The devices of `tasks=job:N,…` and what their tasks are called.
fn tasks(command: &Command) -> Vec<(DeviceName, String)> {
    let device = |name: String| {
        let (job, task) = name.split_once(':').unwrap_or((&name, "0"));
        let full = format!("/job:{job}/replica:0/task:{task}/device:CPU:0");
        let device = DeviceName::parse(&full).unwrap_or_else(|e| panic!("{full}: {e}"));
        (device, name)
    };
    command.values("tasks").into_iter().map(device).collect()
}

fn parts(command: &Command, graph: &Graph) -> Result<String> {
    let tasks = tasks(command);
    let devices: Vec<DeviceRef> = (tasks.iter().enumerate())
        .map(|(task, (device, _))| DeviceRef {
            name: device.to_string().into(),
            incarnation: 7,
            task,
            pushes: !command.has("pulled"),
        })
        .collect();
    let mut out = String::new();
    for part in partition(graph, &devices, &mut 0)? {
        out += &format!("{}:\n", tasks[part.task].1);
        for line in show(&part.graph).lines() {
            out += &format!("  {}\n", short(line));
        }
    }
    Ok(out)
}

/// A node of a part without its device, which the heading says; of a transfer only what it transfers and to whom.
fn short(line: &str) -> String {
    let line = line.rsplit_once(" @").map_or(line, |(line, _)| line);
    let is_transfer = line.contains(" = _Send(") || line.contains(" = _Recv(");
    let kept = line.split(' ').enumerate().filter(|(i, word)| {
        let told = ["tensor_name=", "_pushed=", "_edge="];
        let attr = *i > 2 && word.contains('=') && !word.starts_with('^');
        !is_transfer || !attr || told.iter().any(|t| word.starts_with(t))
    });
    kept.map(|(_, word)| word).collect::<Vec<_>>().join(" ")
}
