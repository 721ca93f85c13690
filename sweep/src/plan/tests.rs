//! Tests of valid plans, and of the messages for invalid ones.

use super::*;

fn wrong(text: &str) -> String {
    Plan::parse(text).unwrap_err().to_string()
}

#[test]
fn a_plan_is_read_in_the_order_of_its_file() {
    let text = "title = 'T'\nnote = 'N'\nrepeats = 3\nengine = 'predicted'\n\
        [base]\nworkload = 'ycsb-a'\nminerva.epoch_ms = 20\n\
        [sweep]\nzipf = [0.3, 0.9]\nrtt = [0]\n'minerva.solver' = ['exact']\n\
        [[series]]\nname = 'plain'\n[[series]]\nname = 'paper'\nminerva.keep_uncommitted = false\n\
        [[case]]\nname = 'near'\nclients = 9\n";
    let plan = Plan::parse(text).unwrap();
    assert_eq!((plan.repeats, plan.engine), (3, Engine::Predicted));
    let axes: Vec<&str> = plan.axes.iter().map(|axis| axis.name.as_str()).collect();
    assert_eq!(axes, ["case", "series", "zipf", "rtt", "minerva.solver"]);
    assert_eq!(plan.base[1].name, "minerva.epoch_ms");
    assert_eq!(plan.axes[1].steps[1].bound[0].value, Value::Flag(false));
}

#[test]
fn what_is_wrong_is_said_with_its_line_and_what_was_meant() {
    for (text, said) in [
        ("title = 'T'\nrepeat = 3", "line 2: there is no key in a plan \"repeat\"; did you mean"),
        ("[base]\nrtt = 0", "line 1: a plan has no title"),
        ("title = 'T'\n\n[sweep]\nrtt = []", "line 4: rtt has no values, so there would be no run"),
        ("title = 'T'\n[sweep]\nrtt = 5", "line 3: rtt must be a list, not integer"),
        ("title = 'T'\n[sweep]\nrtt = [5,\n 5]", "line 4: rtt has the value 5 twice"),
        ("title = 'T'\n[base]\nrtt = [1]", "line 3: rtt must be a number, a string, true or false"),
        ("title = 'T'\nrepeats = 0", "line 2: repeats must be a whole number from 1 to 100"),
        (
            "title = 'T'\nengine = 'reel'",
            "line 2: there is no engine \"reel\"; did you mean \"real\"",
        ),
        (
            "title = 'T'\n[sweep]\nrtt = [0]\n[[case]]\nname = 'a'\nrtt = 3",
            "line 3: rtt is already set by case",
        ),
        ("title = 'T'\n[[case]]\nrtt = 3", "line 2: [[case]] has no name"),
        (
            "title = 'T'\n[[case]]\nname = 'a'\n[[case]]\nname = 'a'",
            "line 4: there are two [[case]]",
        ),
        ("title = 'T'\ntitle = 'U'", "line 2: duplicate key"),
        ("title = ", "line 1: "),
    ] {
        let error = wrong(text);
        assert!(error.starts_with(said), "{text:?}: {error}");
    }
}

#[test]
fn a_figure_is_of_what_there_is() {
    let figure =
        |text: &str| format!("title = 'T'\n[sweep]\nrtt = [0]\n[[figure]]\ntitle = 'F'\n{text}");
    for (text, said) in [
        ("x = 'rtt'", "line 4: [[figure]]: it has no y"),
        ("y = 'latency_ms.p50'", "line 4: [[figure]]: it has no x"),
        ("x = 'rt'\ny = 'latency_ms.p50'", "there is no option in this plan \"rt\""),
        ("x = 'rtt'\ny = 'latency_ms.p51'", "there is no part of latency_ms \"p51\"; did you mean"),
        ("x = 'rtt'\ny = 'thruput'", "there is no measure \"thruput\""),
        ("x = 'rtt'\ny = 'shed'\nseries = 'zipf'", "there is no option in this plan \"zipf\""),
        ("kind = 'lines'", "line 6: there is no kind \"lines\"; did you mean \"line\"?"),
        ("kind = 'timeline'\nx = 'rtt'", "a timeline has neither x nor y"),
        ("x = 'rtt'\ny = 'shed'\nlog = ['z']", "there is no axis \"z\""),
        ("x = 'rtt'\ny = 'shed'\npaper = [{label='P', source='s'}]", "line 8: paper has no points"),
        (
            "x = 'rtt'\ny = 'shed'\npaper = [{label='P', source='s', points=[[1]]}]",
            "line 8: points must be two numbers, not array",
        ),
        (
            "x = 'rtt'\ny = 'shed'\ncolour = 'red'",
            "line 8: there is no key in [[figure]] \"colour\"",
        ),
    ] {
        let error = wrong(&figure(text));
        assert!(error.contains(said), "{text:?}: {error}");
    }
}

#[test]
fn faults_become_the_option_that_a_benchmark_has() {
    let text = "title = 'T'\n[[fault]]\nwhat = 'kill'\nnode = 'region-2'\nat = 3\nfor = 2\n\
        [[fault]]\nwhat = 'cut'\nregions = ['a', 'b']\nat = 6.5\nfor = 0.5\n";
    let plan = Plan::parse(text).unwrap();
    assert_eq!(plan.base[0].name, "fault");
    assert_eq!(plan.base[0].value.to_string(), "kill:region-2@3+2,cut:a/b@6.5+0.5");
    for (text, said) in [
        ("what = 'burn'", "line 3: there is no what \"burn\"; expected one of cut, kill, slow"),
        ("what = 'kill'\nat = 3\nfor = 2", "line 2: [[fault]] has no regions"),
        ("what = 'kill'\nregions = ['a', 'b']\nat = 3\nfor = 2", "line 4: kill has one region"),
        ("what = 'kill'\nregions = 'a'\nfor = 2", "line 2: [[fault]] has no at"),
    ] {
        let error = wrong(&format!("title = 'T'\n[[fault]]\n{text}"));
        assert!(error.starts_with(said), "{text:?}: {error}");
    }
}
