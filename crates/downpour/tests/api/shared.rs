//! Tensors that tasks of a host read where they lie: whoever keeps one has a value that does not change.

use downpour::{Graph, Init, LocalCluster, Session, Tensor};

/// Elements of a tensor that is shared: neither short enough for a message nor long enough to be copied aside.
const LEN: usize = 50_000;

#[test]
fn what_is_fetched_or_assigned_stays_as_it_was_while_its_makers_go_on() {
    let cluster = LocalCluster::start(2, 1).unwrap();
    let g = Graph::new();
    let ones = || Init::value(Tensor::vector(vec![1.0f32; LEN]));
    let v = g.with_device("/job:ps/task:0", || g.variable("v").init(ones()).build());
    let w = g.with_device("/job:ps/task:1", || g.variable("w").init(ones()).build());
    // Made on one task and, over a second, kept by a third.
    let half = g.with_device("/job:ps/task:0", || &*v * 0.5);
    let twice = g.with_device("/job:worker/task:0", || &half * 4.0);
    let push = g.with_device("/job:ps/task:1", || w.assign(&twice));
    let grow = g.with_device("/job:ps/task:0", || v.assign_add(&half));
    let session = Session::new(&cluster.workers()[0], &g).unwrap();
    session.run(&g.initialize_variables()).unwrap();
    let (mut fetched, mut now) = (Vec::new(), 1.0f32);
    for _ in 0..30 {
        session.run(&push).unwrap();
        let [half, kept] = session.step().fetch_all([&half, &w.read()]).unwrap();
        fetched.push((now, half, kept));
        session.run(&grow).unwrap();
        now *= 1.5;
    }
    for (then, half, kept) in &fetched {
        let all = |tensor: &Tensor, value: f32| {
            let values = tensor.as_slice::<f32>().unwrap();
            values.len() == LEN && values.iter().all(|x| *x == value)
        };
        assert!(all(half, then * 0.5), "{half:?} was half of {then}");
        assert!(all(kept, then * 0.5 * 4.0), "{kept:?} was twice {then}");
    }
}
