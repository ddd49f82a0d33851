//! Summaries of training, as TensorBoard reads them.

use downpour::train::hooks::{StopAtStep, Summaries};
use downpour::train::{Events, Every, GradientDescent, Minimize, Supervision, global_step};
use downpour::{Graph, Init, Server, ServerConfig, summary};
use downpour_formats::LocalStorage;
use downpour_formats::event::EventReader;
use downpour_wire::proto::event::What;
use downpour_wire::proto::summary::value::Value;

#[test]
fn an_event_file_holds_the_graph_and_numbers_over_time() {
    let dir = tempfile::tempdir().unwrap();
    let events = Events::create(dir.path().to_str().unwrap()).unwrap();
    let server = Server::start(ServerConfig::local()).unwrap();
    let g = Graph::new();
    let step = global_step(&g);
    let w = g.variable("w").init(Init::value(vec![4.0f32, 4.0])).build();
    let loss = w.square().sum(());
    summary::scalar("loss", &loss);
    summary::histogram("weights", &w);
    summary::text("note", &g.constant("hello"));
    let train = GradientDescent::new(0.1)
        .minimize(&loss, Some(&step))
        .unwrap();
    let mut session = Supervision::new(&server, &g)
        .hook(Summaries::new(events.clone(), Every::Steps(2)))
        .hook(StopAtStep::new(6))
        .open()
        .unwrap();
    while !session.should_stop() {
        session.step().target(&train).run().unwrap();
    }
    session.close().unwrap();
    let mut reader = EventReader::open(&LocalStorage::new(), &events.path()).unwrap();
    let (mut graphs, mut losses, mut histograms, mut texts) = (0, Vec::new(), 0, 0);
    while let Some(event) = reader.read().unwrap() {
        match event.what {
            Some(What::GraphDef(_)) => graphs += 1,
            Some(What::Summary(summary)) => {
                for value in summary.value {
                    match (value.tag.as_str(), value.value) {
                        ("loss", Some(Value::SimpleValue(v))) => losses.push((event.step, v)),
                        ("weights", Some(Value::Histo(_))) => histograms += 1,
                        ("note", Some(Value::Tensor(_))) => texts += 1,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    assert_eq!((graphs, histograms, texts), (1, losses.len(), losses.len()));
    assert!(losses.len() >= 2, "{losses:?}");
    assert!(losses.windows(2).all(|w| w[0].1 > w[1].1), "{losses:?}");
}
