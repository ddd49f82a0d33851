//! Steps that wait, and end before what they wait for comes.

use downpour::{AttrList, AttrValue, Code, DType, Graph, LocalCluster, PartialShape, Session};
use std::time::Duration;

#[test]
fn a_step_that_gave_up_takes_nothing_from_a_queue_of_another_task() {
    let cluster = LocalCluster::start(1, 1).unwrap();
    let g = Graph::new();
    let x = g.placeholder("x", DType::Int64, ());
    let types = || AttrValue::List(AttrList::Type(vec![DType::Int64]));
    let (put, take) = g.with_device("/job:ps/task:0", || {
        let shapes = AttrValue::List(AttrList::Shape(vec![PartialShape::from_dims([])]));
        let queue = g.op("FIFOQueueV2").attr("component_types", types());
        let queue = queue.attr("shapes", shapes).output();
        let put = g.op("QueueEnqueueV2").input(&queue);
        let take = g.op("QueueDequeueV2").input(&queue);
        (
            put.inputs(std::slice::from_ref(&x)).build(),
            take.attr("component_types", types()).output(),
        )
    });
    let session = Session::new(&cluster.workers()[0], &g).unwrap();
    for value in 0..3i64 {
        let early = session.step().timeout(Duration::from_millis(200));
        assert_eq!(early.fetch(&take).unwrap_err().code, Code::DeadlineExceeded);
        // Giving up is told to the other task, not waited for.
        std::thread::sleep(Duration::from_millis(300));
        session.step().feed(&x, value).target(&put).run().unwrap();
        let late = session.step().timeout(Duration::from_secs(20));
        let got = late.fetch(&take).unwrap();
        assert_eq!(got.scalar_value::<i64>().unwrap(), value);
    }
}
