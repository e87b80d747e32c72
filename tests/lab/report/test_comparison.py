from maxsep.lab.recipes import longtail
from maxsep.lab.report.collect import Record, collect
from maxsep.lab.report.comparison import USUAL, Method, Setting, distinctions, duel, settings_of, several_losses
from maxsep.lab.spec import RunSpec, options


def arms(base, **fields):
    heads = (("plain", 1.0), ("scaled", 0.1), ("maxsep", 0.1), ("maxsep", 1.0))
    return [base.replace(head=head, radius=radius, **fields) for head, radius in heads]


def test_runs_that_differ_in_more_than_the_head_are_not_compared(tmp_path, run_folders):
    base = RunSpec(head="plain")
    run_folders(tmp_path, [*arms(base), *arms(base, epochs=5), *arms(base, imbalance=0.1), *arms(base, seed=1)])
    settings = settings_of(collect(tmp_path).records)
    assert len(settings) == 3
    assert all(len(setting.entries) == 4 for setting in settings)
    full = next(s for s in settings if s.spec.epochs == 20 and s.spec.imbalance == 1)
    assert all(sorted(entry.records) == [0, 1] for entry in full.entries.values())
    labels = distinctions(settings)
    assert labels[full.spec] == "20 epochs"


def test_the_control_has_the_same_radius_and_loss(tmp_path, run_folders):
    run_folders(tmp_path, arms(RunSpec(head="plain")))
    (setting,) = settings_of(collect(tmp_path).records)
    assert setting.control(Method("maxsep", 0.1)).method == Method("scaled", 0.1)
    assert setting.control(Method("maxsep", 1.0)).method == Method("plain", 1.0)
    assert setting.control(Method("maxsep", 0.3)) is None
    assert setting.control(Method("hpn", 0.1, (), "squared_cosine")) is None
    assert setting.plain(Method("hpn", 1.0, (), "squared_cosine")).method == Method("plain", 1.0)
    assert setting.against(Method("plain", 1.0), setting.plain(Method("plain", 1.0))) is None


def test_rows_come_as_pairs_after_plain(tmp_path, run_folders):
    extra = [RunSpec(head="etf"), RunSpec(head="scaled", radius=3.0), RunSpec(head="learnable_matrix", radius=0.1)]
    run_folders(tmp_path, [*extra, *arms(RunSpec(head="plain"))])
    (setting,) = settings_of(collect(tmp_path).records)
    assert [(m.head, m.radius) for m in setting.entries] == [
        ("plain", 1.0),
        ("scaled", 3.0),
        ("maxsep", 1.0),
        ("scaled", 0.1),
        ("maxsep", 0.1),
        ("learnable_matrix", 0.1),
        ("etf", 1.0),
    ]


def test_a_run_of_scaled_at_radius_one_counts_as_plain():
    assert Method.of(RunSpec(head="scaled")) == Method("plain", 1.0)


def test_a_duel_counts_what_the_tests_say(tmp_path, run_folder):
    for seed, shift in enumerate((0.0, 0.004, -0.003)):
        for head, mean in (("maxsep", 0.7), ("etf", 0.5), ("extra_layer", 0.7)):
            wiggle = shift if head == "etf" else -shift if head == "maxsep" else 0.0
            run_folder(tmp_path, RunSpec(head=head, seed=seed), top1=mean + wiggle)
    settings = settings_of(collect(tmp_path).records)
    told = "maxsep against etf, 1 comparison, before correction: 1 better by more than seed noise."
    assert duel(settings, "maxsep", "etf") == told
    assert duel(settings, "etf", "maxsep").endswith(": 1 worse by more than seed noise.")
    assert duel(settings, "maxsep", "extra_layer").endswith(
        "extra layer, 1 comparison, before correction: 1 not told apart."
    )
    assert duel(settings, "maxsep", "hpn") == ""


def test_labels():
    assert Method("hpn", 0.1, options(normalise=False)).full_label == "hpn (normalise=False), radius 0.1"
    assert Method("hpn", 1.0, (), "squared_cosine").full_label == "hpn (squared cosine)"
    assert Method("plain", 0.1).named(loss=True) == "plain (cross-entropy)"
    assert Method("cosine", 1.0, (), "ldam", options(max_margin=0.4)).named(loss=False) == "cosine (margin 0.4)"


def test_a_search_does_not_lengthen_the_names_of_what_it_was_for(tmp_path, run_folder):
    spec = RunSpec(dataset="cifar10", network="resnet32", imbalance=0.01, head="plain")
    run_folder(tmp_path, spec)
    run_folder(tmp_path, spec.replace(validation=0.2, weight_decay=1e-3))
    shown, searched = sorted(settings_of(collect(tmp_path).records), key=lambda setting: setting.spec.validation)
    assert (shown.distinction, searched.distinction) == ("", "")


def test_a_second_stage_is_named_and_its_fields_are_not_recited(tmp_path, run_folders):
    first = RunSpec(dataset="cifar100", network="resnet32", imbalance=0.01, mixup=1.0)
    second = first.replace(
        mixup=0.0, epochs=10, start_from=first, sampler="class_balanced", backbone="frozen_shifted_norm",
        logit_scaling=True, head_rate=0.2,
    )  # fmt: skip
    other = first.replace(mixup=0.0)
    run_folders(tmp_path, [first, second, other])
    labels = distinctions(settings_of(collect(tmp_path).records))
    assert sorted(labels.values()) == ["mixup 1", "no mixup", "second stage, no mixup"]


def test_what_a_second_stage_has_of_its_own_is_told_where_the_imbalance_does_not_say_it():
    settings = [Setting(spec) for block in longtail.RECIPE.blocks for spec in block.settings]
    assert set(distinctions(settings).values()) == {"no mixup", "mixup 1", "second stage, no mixup"}
    again = next(s.spec for s in settings if s.spec.start_from is not None).replace(head_rate=1.0)
    assert "second stage, no mixup, head rate 1" in distinctions([*settings, Setting(again)]).values()


def test_options_of_a_loss_are_said_in_words_and_sorted():
    sgd, drw = {"max_margin": 0.5}, {"max_margin": 0.4, "reweight": "effective", "reweight_from": 160}
    methods = [Method("cosine", 1.0, (), "ldam", options(**given)) for given in (drw, sgd)]
    assert [method.label for method in sorted(methods, key=lambda method: method.order)] == [
        "cosine (LDAM, margin 0.5)",
        "cosine (LDAM, margin 0.4, re-weighted from epoch 160)",
    ]


def test_data_that_have_a_tail_are_not_called_balanced(tmp_path, run_folder):
    told = {"birds": [150, 105, 6], "digits": [122, 116, 119], "cut": [500, 50, 5], "old": None}
    for name, counts in told.items():
        spec = RunSpec(dataset=f"folder:{name}", imbalance=0.01 if name == "cut" else 1.0)
        run_folder(tmp_path, spec, metrics={"top1": 0.5, **({"class_counts": counts} if counts else {})})
    found = {s.title.split(",")[0]: s for s in settings_of(collect(tmp_path).records)}
    assert {name: s.balance for name, s in found.items()} == {
        "birds": "unequal, 150 to 6 images a class", "digits": "balanced", "cut": "imbalance 0.01", "old": "balanced",
    }  # fmt: skip
    assert {name for name, s in found.items() if s.is_tailed} == {"birds", "cut"}
    assert (found["birds"].class_counts, found["old"].class_counts) == ([150, 105, 6], [])
    assert found["birds"].label == "birds, MLP, unequal, 150 to 6 images a class"


def test_settings_whose_classes_differ_are_told_apart_by_what_made_them_differ(tmp_path, run_folder):
    """Two draws from one folder have other counts; the names say how they were drawn."""
    for most, counts in ((100, [70, 30]), (50, [34, 16])):
        run_folder(tmp_path, RunSpec(max_train=most), metrics={"top1": 0.5, "class_counts": counts})
    assert {s.distinction for s in settings_of(collect(tmp_path).records)} == {"max train 100", "max train 50"}


def test_rows_are_sorted_by_loss_and_cross_entropy_comes_first_and_is_named(tmp_path, run_folders):
    losses = ("logit_adjusted", "balanced_softmax", "cross_entropy")
    run_folders(tmp_path, [spec for loss in losses for spec in arms(RunSpec(head="plain", loss=loss))])
    (setting,) = settings_of(collect(tmp_path).records)
    heads = ("plain{}", "maxsep{}", "scaled{}, radius 0.1", "maxsep{}, radius 0.1")
    names = ("cross-entropy", "balanced softmax", "logit adjusted")
    assert [setting.full_name(method) for method in setting.entries] == [
        head.format(f" ({name})") for name in names for head in heads
    ]


def test_cross_entropy_goes_without_saying_where_no_head_has_another_loss(tmp_path, run_folders):
    run_folders(tmp_path, [*arms(RunSpec(head="plain")), RunSpec(head="hpn", loss="squared_cosine")])
    (setting,) = settings_of(collect(tmp_path).records)
    names = ["plain", "maxsep", "scaled", "maxsep", "hpn (squared cosine)"]
    assert list(map(setting.name, setting.entries)) == names


def test_every_head_has_a_plain_one_and_a_control():
    ldam = {"loss": "ldam", "loss_options": options(max_margin=0.4)}
    cosine, behind, centred, true = (
        Method(head, 1.0, **ldam) for head in ("cosine", "cosine_maxsep", "centred_cosine", "maxsep_cosine")
    )
    assert {method.plain for method in (cosine, behind, centred, true)} == {cosine}
    assert (behind.control, true.control) == (cosine, centred)
    assert Method("maxsep", 0.1, loss="logit_adjusted").control == Method("scaled", 0.1, loss="logit_adjusted")
    assert Method("maxsep", 1.0).control == Method("maxsep", 1.0).plain == USUAL
    assert Method("hpn", 1.0, loss="squared_cosine").plain == USUAL


def test_what_stands_for_a_loss():
    brings = [("plain", "logit_adjusted"), ("cosine", "ldam")]
    others = [
        ("plain", "cross_entropy"),
        ("cosine", "cross_entropy"),
        ("maxsep", "logit_adjusted"),
        ("hpn", "squared_cosine"),
    ]
    assert all(Method(head, 1.0, loss=loss).brings_loss for head, loss in brings)
    assert not any(Method(head, 1.0, loss=loss).brings_loss for head, loss in others)
    cosine = Method("cosine", 1.0, loss="ldam")
    assert several_losses([USUAL, cosine])
    assert not several_losses([cosine, Method("maxsep", 1.0)]), "no name is given twice, and nothing is compared"
    assert not several_losses([USUAL, Method("maxsep_cosine", 1.0, loss="ldam")])


def test_re_weighting_from_the_start_is_not_called_none():
    """Either option of deferred weights asks for them, and the name of a method says from when."""
    for given in ({"reweight": "effective"}, {"reweight_from": 0}, {"reweight": "effective", "reweight_from": 0}):
        method = Method.of(RunSpec(head="cosine", loss="ldam", loss_options=options(**given)))
        assert method.label == "cosine (LDAM, re-weighted from epoch 0)"
    assert Method.of(RunSpec(head="cosine", loss="ldam")).label == "cosine (LDAM)"


def test_seeds_with_their_own_subsets_are_one_setting(tmp_path):
    spec = RunSpec(dataset="cifar10", imbalance=0.02, head="plain")
    own = [spec.replace(seed=seed, subset_seed=seed - 123) for seed in (123, 124, 125)]
    other = spec.replace(seed=123, subset_seed=7)
    records = [Record(tmp_path, each, {"top1": 0.5}) for each in (*own, other)]
    assert [len(setting.entries[Method.of(spec)].records) for setting in settings_of(records)] == [3, 1]
