//! A task with several CPU devices: they are listed, nodes run on the one they name, and each has its own variables.

use downpour::{Graph, Init, Server, ServerConfig, Session};
use std::collections::BTreeSet;

#[test]
fn nodes_run_on_the_cpu_they_name_and_variables_stay_there() {
    let server = Server::start(ServerConfig {
        cpu_devices: 2,
        ..ServerConfig::local()
    })
    .unwrap();
    let g = Graph::new();
    let on = |device: &str, value: f32| {
        g.with_device(device, || {
            g.variable(&format!("v{value}"))
                .init(Init::value([value, value]))
                .build()
        })
    };
    let (a, b) = (on("/cpu:0", 1.0), on("/cpu:1", 2.0));
    let sum = g.with_device("/cpu:1", || &*a + &*b);
    let back = g.with_device("/cpu:0", || &sum * &*a);
    let session = Session::new(&server, &g).unwrap();
    let listed: Vec<String> = session
        .devices()
        .unwrap()
        .into_iter()
        .map(|d| d.name)
        .collect();
    assert_eq!(
        listed,
        ["CPU:0", "CPU:1"].map(|d| format!("/job:localhost/replica:0/task:0/device:{d}"))
    );
    session.run(&g.initialize_variables()).unwrap();
    let got = session.fetch(&back).unwrap();
    assert_eq!(got.as_slice::<f32>().unwrap(), [3.0, 3.0]);
    let traced = session.step().trace(&[back]).unwrap();
    let stats = traced.metadata.step_stats.as_ref().unwrap();
    let busy: BTreeSet<&str> = stats
        .devices
        .iter()
        .filter(|d| !d.nodes.is_empty())
        .map(|d| &d.device[d.device.len() - 5..])
        .collect();
    assert_eq!(busy, BTreeSet::from(["CPU:0", "CPU:1"]));
}

#[test]
fn a_device_that_the_task_does_not_have_is_refused() {
    let server = Server::start(ServerConfig::local()).unwrap();
    let g = Graph::new();
    g.with_device("/cpu:1", || g.constant(1.0f32));
    // Devices are assigned when the graph arrives.
    let e = Session::new(&server, &g).map(|_| ()).unwrap_err();
    assert!(e.to_string().contains("was explicitly assigned to"), "{e}");
}
