//! A little training whose event file holds one of everything that TensorBoard shows.

use anyhow::Result;
use downpour::train::hooks::{StopAtStep, Summaries};
use downpour::train::{Events, Every, GradientDescent, Minimize, Supervision, global_step};
use downpour::{Graph, Init, Server, ServerConfig, summary};

/// How many steps are made; each has summaries.
const STEPS: i64 = 5;

pub(crate) fn run(dir: &str) -> Result<()> {
    let events = Events::create(dir)?;
    let server = Server::start(ServerConfig::local())?;
    let g = Graph::new();
    let step = global_step(&g);
    let w = g
        .variable("layer/w")
        .init(Init::value(vec![4.0f32, -4.0, 2.0, 0.5]))
        .build();
    let loss = w.square().sum(());
    g.with_scope("train", || summary::scalar("loss", &loss));
    summary::scalar("twice", &(&loss * 2.0));
    summary::histogram("weights", &w);
    let pixels: Vec<f32> = (0..2 * 4 * 6 * 3).map(|i| i as f32 / 144.0).collect();
    let pixels = g.constant(pixels).reshape(&[2, 4, 6, 3]);
    summary::image("pixels", &pixels);
    let waves: Vec<f32> = (0..800).map(|i| (i as f32 * 0.3).sin()).collect();
    let waves = g.constant(waves).reshape(&[1, 800, 1]);
    summary::audio("waves", &waves, 8000.0);
    summary::text("note", &g.constant("a **note**"));
    let rows = [["a", "b"], ["c", "d"]].concat();
    let rows: Vec<String> = rows.into_iter().map(str::to_owned).collect();
    summary::text("table", &g.constant(rows).reshape(&[2, 2]));
    let train = GradientDescent::new(0.1).minimize(&loss, Some(&step))?;
    let mut session = Supervision::new(&server, &g)
        .hook(Summaries::new(events.clone(), Every::Steps(1)))
        .hook(StopAtStep::new(STEPS))
        .open()?;
    while !session.should_stop() {
        session.step().target(&train).run()?;
    }
    let traced = session.raw()?.step().trace(&[loss])?;
    events.run(STEPS, "loss_traced", &traced.metadata)?;
    session.close()?;
    let chosen = [
        ("optimizer", "sgd".into()),
        ("rate", 0.1.into()),
        ("sync", false.into()),
    ];
    events.hyperparameters(&chosen)?;
    events.scalar(STEPS, "by_hand", 0.25)?;
    events.flush()?;
    Ok(())
}
