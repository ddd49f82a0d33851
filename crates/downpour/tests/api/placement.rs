//! Variables on the parameter servers that a device setter chose, also in parts, and what the
//! workers read and change there.

use downpour::train::{Adagrad, Minimize, Schedule, global_step};
use downpour::{
    Combiner, DType, Graph, Init, LocalCluster, Lookup, Partitioner, ReplicaDeviceSetter, Server,
    ServerConfig, Session, SparseTensor, Spread, Tensor, embedding_lookup_sparse,
};
use std::collections::HashMap;

/// `0, 1, 2, …` in rows.
fn counting(rows: usize, columns: usize) -> Tensor {
    let values: Vec<f32> = (0..rows * columns).map(|i| i as f32).collect();
    Tensor::vector(values).reshaped([rows, columns]).unwrap()
}

/// Where each node of a traced step ran.
fn ran_on(traced: &downpour::Traced) -> HashMap<String, String> {
    let stats = traced.metadata.step_stats.as_ref().unwrap();
    let mut ran = HashMap::new();
    for device in &stats.devices {
        for node in &device.nodes {
            ran.insert(node.node_name.clone(), device.device.clone());
        }
    }
    ran
}

#[test]
fn variables_are_where_the_setter_says_and_slots_beside_them() {
    let cluster = LocalCluster::start(2, 1).unwrap();
    let g = Graph::new();
    let setter = ReplicaDeviceSetter::new(2).worker_device("/job:worker/task:0");
    let (train, loss, variables) = g.with_device_function(setter.build().unwrap(), || {
        let a = g.variable("a").init(Init::value([1.0f32, 2.0])).build();
        let b = g.variable("b").init(Init::value([3.0f32, 4.0])).build();
        let step = global_step(&g);
        let loss = (&*a * &*b).square().sum(());
        let train = Adagrad::new(0.1).minimize(&loss, Some(&step)).unwrap();
        (train, loss, g.variables())
    });
    let placed: Vec<(String, String)> = variables
        .iter()
        .map(|v| (v.name().to_owned(), v.handle().operation().device()))
        .collect();
    let task = |name: &str, task: u32| (name.to_owned(), format!("/job:ps/task:{task}"));
    // What TensorFlow 2.21's replica_device_setter gives for the same program.
    assert_eq!(
        placed,
        [
            task("a", 0),
            task("b", 1),
            task("global_step", 0),
            task("a/Adagrad", 0),
            task("b/Adagrad", 1),
        ]
    );
    let session = Session::new(&cluster.workers()[0], &g).unwrap();
    session.run(&g.initialize_variables()).unwrap();
    let traced = session.step().target(&train).trace(&[loss]).unwrap();
    let ran = ran_on(&traced);
    let at = |node: &str| ran.get(node).map(String::as_str).unwrap_or_default();
    for (node, task) in [
        ("a/Read/ReadVariableOp", 0),
        ("b/Read/ReadVariableOp", 1),
        ("Adagrad/update_a/ResourceApplyAdagrad", 0),
        ("Adagrad/update_b/ResourceApplyAdagrad", 1),
        ("Adagrad", 0),
    ] {
        let wanted = format!("/job:ps/replica:0/task:{task}/device:CPU:0");
        assert_eq!(at(node), wanted, "{node} of {ran:?}");
    }
    let step = session.fetch(&global_step(&g)).unwrap();
    assert_eq!(step.scalar_value::<i64>().unwrap(), 1);
}

#[test]
fn a_table_in_parts_is_read_changed_and_looked_up_as_one() {
    let cluster = LocalCluster::start(2, 1).unwrap();
    let g = Graph::new();
    let setter = ReplicaDeviceSetter::new(2)
        .strategy(Spread::by_bytes(2))
        .worker_device("/job:worker/task:0");
    let bags = SparseTensor {
        indices: g.constant([[0i64, 0], [0, 1], [2, 0]]),
        values: g.constant([6i64, 0, 6]),
        shape: g.constant([3i64, 2]),
    };
    let (table, rows, combined) = g.with_device_function(setter.build().unwrap(), || {
        let table = g.variable("table").init(Init::value(counting(7, 2)));
        let table = table.partitioned(&Partitioner::fixed(3));
        let rows = table.gather(&g.constant([[6i32, 0], [3, 4]]));
        let combine = |how| embedding_lookup_sparse(&table, &bags, None, Lookup::Div, how);
        let combined = [combine(Combiner::Sum), combine(Combiner::Mean)];
        (table, rows, combined)
    });
    let devices: Vec<String> = table
        .parts()
        .iter()
        .map(|p| p.handle().operation().device())
        .collect();
    // Of 3, 2 and 2 rows: the second goes where nothing is, the third where there is less.
    assert_eq!(
        devices,
        ["/job:ps/task:0", "/job:ps/task:1", "/job:ps/task:1"]
    );
    let session = Session::new(&cluster.workers()[0], &g).unwrap();
    session.run(&g.initialize_variables()).unwrap();
    let whole = session.fetch(table.value()).unwrap();
    assert_eq!(
        whole.as_slice::<f32>().unwrap(),
        counting(7, 2).as_slice::<f32>().unwrap()
    );
    let found = session.fetch(&rows).unwrap();
    assert_eq!(found.dims(), [2, 2, 2]);
    assert_eq!(
        found.as_slice::<f32>().unwrap(),
        [12.0, 13.0, 0.0, 1.0, 6.0, 7.0, 8.0, 9.0]
    );
    let [sum, mean] = [&combined[0], &combined[1]].map(|c| session.fetch(c).unwrap());
    assert_eq!(
        sum.as_slice::<f32>().unwrap(),
        [12.0, 14.0, 0.0, 0.0, 12.0, 13.0]
    );
    assert_eq!(mean.as_slice::<f32>().unwrap()[..2], [6.0, 7.0]);
    let double = table.assign(&(table.value() * 2.0));
    session.run(&double).unwrap();
    let rows = session.fetch(&rows).unwrap();
    assert_eq!(rows.as_slice::<f32>().unwrap()[..2], [24.0, 26.0]);
}

#[test]
fn without_parameter_servers_everything_runs_where_the_session_is() {
    let server = Server::start(ServerConfig::local()).unwrap();
    let g = Graph::new();
    let setter = ReplicaDeviceSetter::new(0).build().unwrap();
    let w = g.with_device_function(setter, || {
        g.variable("w").init(Init::value([1.0f32, 2.0])).build()
    });
    let session = Session::new(&server, &g).unwrap();
    session.run(w.initializer()).unwrap();
    let value = session.fetch(&w).unwrap();
    assert_eq!(value.as_slice::<f32>().unwrap(), [1.0, 2.0]);
}

const SCHEDULED: [[f32; 4]; 4] = [
    [0.1, 0.092_750_46, 0.074_005_55, 0.050_797_77],
    [0.1, 0.087_942_29, 0.01, 0.055],
    [0.1, 0.026_942_952, 0.011_015_418, 0.013_609_679],
    [0.1, 0.1, 0.05, 0.01],
];

// Expected numbers: tf.compat.v1.train's functions of the same names in TensorFlow 2.21;
// conformance/optimizers.py compares all of them at fifty steps.
#[test]
fn schedules_follow_tensorflows() {
    let server = Server::start(ServerConfig::local()).unwrap();
    let g = Graph::new();
    let step = g.placeholder("step", DType::Int64, ());
    let cases = [
        (Schedule::exponential(0.1, 7.0, 0.9), SCHEDULED[0]),
        (
            Schedule::polynomial(0.1, 20.0, 0.01, 0.5).cycle(),
            SCHEDULED[1],
        ),
        (
            Schedule::cosine_restarts(0.1, 7.0, 2.0, 0.9, 0.1),
            SCHEDULED[2],
        ),
        (
            Schedule::piecewise_constant(&[5, 20], &[0.1, 0.05, 0.01]),
            SCHEDULED[3],
        ),
    ];
    let session = Session::new(&server, &g).unwrap();
    for (schedule, expected) in cases {
        let rate = schedule.at(&step);
        for (at, expected) in [0i64, 5, 20, 45].into_iter().zip(expected) {
            let got = session.step().feed(&step, at).fetch(&rate).unwrap();
            let got = got.scalar_value::<f32>().unwrap();
            assert!(
                (got - expected).abs() < 1e-7,
                "{schedule:?} at {at}: {got}, not {expected}"
            );
        }
    }
}
