"""The cases of the API-server tier, in the order in which they run: each builds on the world that the earlier ones left."""

import json
import re
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

from harness import ROOT, Failed, Watch, apply, condition, expect, get, helm_template, kubectl, wait_until, with_ports
from manifests import REFUSED, REFUSED_CHANGES, cluster, stream

CASES = []

STREAMS = "streams.headwater.dev"
CLUSTERS = "streamclusters.headwater.dev"


def case(function):
    """Registers a case; its doc string is what the report prints."""
    CASES.append(function)
    return function


# ---------------------------------------------------------------- helpers

def nats(world, *args, stdin=None, ok=True):
    servers = ",".join(f"nats://127.0.0.1:{node.listen}" for node in world.nodes if node.process.running())
    run = subprocess.run(["nats", "--server", servers, "--timeout", "5s", *args], input=stdin,
                         capture_output=True, text=True, timeout=60)
    if ok and run.returncode:
        raise Failed(f"nats {' '.join(args)}: {run.stderr.strip() or run.stdout.strip()}")
    return run.stdout


def js(world, subject, body=None):
    """One JetStream API request, asked again while there is no responder or no leader."""
    def ask():
        text = nats(world, "request", "--raw", f"$JS.API.{subject}", json.dumps(body) if body is not None else "", ok=False)
        try:
            return json.loads(text)
        except ValueError:
            raise Failed(f"{subject} answered {text!r}")
    return wait_until(10, f"$JS.API.{subject} answers", ask)


def stream_info(world, name):
    """The stream as JetStream shows it, or None."""
    answer = js(world, f"STREAM.INFO.{name}")
    if "error" in answer:
        expect(answer["error"].get("err_code") == 10059, f"STREAM.INFO.{name}: {answer['error']}")
        return None
    return answer


def create(world, name, **config):
    answer = js(world, f"STREAM.CREATE.{name}", {"name": name, "subjects": [name.lower()], "storage": "file", **config})
    expect("error" not in answer, f"STREAM.CREATE.{name}: {answer.get('error')}")
    return answer


def publish(world, subject, count):
    nats(world, "publish", subject, "message {{Count}}", "--count", str(count), "--jetstream", "--quiet")


def is_condition(kind, name, type_, status, reason=None, namespace="default", contains=()):
    """A probe for wait_until: the condition has this status, this reason, and these texts in its message."""
    def probe():
        found = condition(get(kind, name, namespace), type_)
        if found[0] != status or (reason and found[1] != reason) or any(text not in found[2] for text in contains):
            raise Failed(f"{type_} of {name} is {found}")
        return True
    return probe


def ready(name, namespace="default", seconds=20):
    wait_until(seconds, f"{name} is Ready", is_condition(STREAMS, name, "Ready", "True", namespace=namespace))


def settled(name, namespace="default", seconds=30):
    ready(name, namespace, seconds)
    for type_, status in (("Reconciling", "False"), ("DurabilityInSync", "True"), ("Recovered", "True")):
        wait_until(seconds, f"{type_} of {name} is {status}", is_condition(STREAMS, name, type_, status, namespace=namespace))


def current(name, namespace="default"):
    """The object, once its status speaks of its newest generation."""
    def probe():
        found = get(STREAMS, name, namespace)
        return found if found["status"].get("observedGeneration") == found["metadata"]["generation"] else None
    return wait_until(20, f"status of {name} follows its generation", probe)


def events(name, reason, namespace="default"):
    out, _ = kubectl("get", "events", "-n", namespace, "-o", "json", "--field-selector",
                     f"involvedObject.name={name},reason={reason}")
    return json.loads(out)["items"]


def told(name, reason, type_="Normal", contains=(), namespace="default"):
    """Waits for an event of that reason, of that type, and with these texts in its message."""
    def probe():
        found = [(event["type"], event["message"]) for event in events(name, reason, namespace)]
        if not any(kind == type_ and all(text in message for text in contains) for kind, message in found):
            raise Failed(f"events {reason} of {name}: {found}")
        return True
    wait_until(15, f"an event {reason} of {name}", probe)


def lease():
    return get("lease", "headwater-operator")["spec"]


def replicas(found):
    return {entry["node"]: entry for entry in found["status"].get("replicas", [])}


def effective(found):
    """allowAsyncFlush as it is in force on each replica that is known."""
    return {node: entry["effective"]["allowAsyncFlush"]
            for node, entry in replicas(found).items() if entry.get("effective")}


def patch(name, spec, namespace="default"):
    kubectl("patch", STREAMS, name, "-n", namespace, "--type=merge", "-p", json.dumps({"spec": spec}))


def patch_refused(name, spec, text):
    """A change that the API server must refuse, with this text."""
    _, err = kubectl("patch", STREAMS, name, "--type=merge", "-p", json.dumps({"spec": spec}), ok=False)
    expect(text in err, f"{spec}: {text!r} is not in {err.strip()!r}")


def external(world, name="headwater", nodes=None):
    nodes = world.nodes if nodes is None else nodes
    manifest = cluster(name, clientURL=f"nats://127.0.0.1:{world.nodes[0].listen}", adminURLs=[n.url() for n in nodes])
    manifest["spec"]["external"]["adminTokenSecretRef"] = {"name": "headwater-admin"}
    return manifest


def token_secret(world, namespace="default", token=None):
    kubectl("create", "secret", "generic", "headwater-admin", "-n", namespace, f"--from-literal=token={token or world.token}")


# ---------------------------------------------------------------- kinds

@case
def crds_install_without_a_warning(world):
    """the CRDs install under strict validation without a warning"""
    files = sorted((ROOT / "crds/yaml").glob("*.yaml"))
    expect(len(files) == 2, f"two files in crds/yaml, found {files}")
    for file in files:
        _, err = kubectl("apply", "--server-side", "--validate=strict", "-f", file)
        expect("Warning" not in err, f"{file.name}: {err}")
    for name in (STREAMS, CLUSTERS):
        wait_until(20, f"{name} is established", is_condition("crd", name, "Established", "True"))
        # Non-structural parts show up here and not as a warning.
        expect(condition(get("crd", name), "NonStructuralSchema")[0] in (None, "False"), f"{name} is not structural")


@case
def operator_prints_the_same_crds(world):
    """`headwater-operator crds` prints what crds/yaml holds"""
    printed = subprocess.run([world.operator_binary, "crds"], capture_output=True, text=True, check=True).stdout
    out, err = kubectl("diff", "--server-side", "-f", "-", stdin=printed)
    expect(not out.strip() and "Warning" not in err, f"differs: {out}{err}")


@case
def bad_manifests_are_refused_with_the_field(world):
    """bad manifests are refused, and the message names the field"""
    with ThreadPoolExecutor(4) as pool:
        wrong = [text for text in pool.map(refused, REFUSED) if text]
        wrong += [text for text in pool.map(refused_change, enumerate(REFUSED_CHANGES)) if text]
    expect(not wrong, "\n  ".join([f"{len(wrong)} of {len(REFUSED) + len(REFUSED_CHANGES)}:", *wrong]))


def refused(row):
    """What is wrong with the refusal of a manifest, None when nothing is."""
    what, manifest, text = row
    try:
        _, err = apply(manifest, ok=False)
    except Failed as failed:
        return f"{what}: {failed}"
    return None if text in err else f"{what}: {text!r} is not in {err.strip()!r}"


def refused_change(row):
    """The same for a change of an object."""
    number, (what, before, after, text) = row
    name = f"change-{number}"
    try:
        kubectl("create", "-f", "-", stdin=json.dumps(stream(name, **before)))
        _, err = kubectl("replace", "-f", "-", stdin=json.dumps(stream(name, **after)), ok=False)
    except Failed as failed:
        return f"{what}: {failed}"
    kubectl("delete", STREAMS, name)
    return None if text in err else f"{what}: {text!r} is not in {err.strip()!r}"


@case
def an_unseen_object_is_not_done(world):
    """an object that no operator has seen says Ready=Unknown, not nothing"""
    apply(stream("unseen"))
    expect(condition(get(STREAMS, "unseen"), "Ready")[:2] == ("Unknown", "NotReconciled"), "no default status")
    kubectl("delete", STREAMS, "unseen")


# ---------------------------------------------------------------- the operator's own life

@case
def bad_flags_are_all_reported(world):
    """bad flags are reported all at once, with exit code 2"""
    run = subprocess.run([world.operator_binary, "run", "--namespace", "Not_Valid", "--http", "nowhere", "--lease-namespace", "-"],
                         capture_output=True, text=True)
    expect(run.returncode == 2, f"exit code {run.returncode}")
    for flag in ("--namespace", "--http", "--lease-namespace"):
        expect(flag in run.stderr, f"{flag} is not in {run.stderr!r}")


@case
def one_leader_and_a_ready_standby(world):
    """with the chart's own rights, of two operators one leads; both are ready; the standby takes over after SIGTERM at once"""
    world.grant_operator()
    first = world.start_operator()
    wait_until(20, "the first operator leads", lambda: (get("lease", "headwater-operator") or {}).get("spec", {}).get("holderIdentity"))
    held = lease()
    second = world.start_operator()
    for operator in (first, second):
        wait_until(10, f"{operator.name} is ready", lambda: world.http(operator.port, "/readyz") == "ok\n")
    expect("headwater_operator_leader 1" in world.http(first.port, "/metrics"), "the first has no leader metric")
    expect("headwater_operator_leader 0" in world.http(second.port, "/metrics"), "the second claims to lead")
    expect(first.stop() == 0, f"SIGTERM did not end in exit code 0: {first.tail()}")
    taken = wait_until(5, "the standby leads", lambda: lease() if lease()["holderIdentity"] not in ("", held["holderIdentity"]) else None)
    expect(taken["leaseTransitions"] > held["leaseTransitions"], f"leaseTransitions did not grow: {held} {taken}")
    world.operator = second


# ---------------------------------------------------------------- a stream from the examples

@case
def a_missing_cluster_is_named_and_heals(world):
    """without its cluster a stream says ClusterNotFound with cluster, namespace and remedy, and heals when it appears"""
    kubectl("create", "namespace", "lonely")
    apply({**stream("early", replicas=3), "metadata": {"name": "early", "namespace": "lonely"}})
    wait_until(10, "Ready=False/ClusterNotFound", is_condition(
        STREAMS, "early", "Ready", "False", "ClusterNotFound", "lonely", ("headwater", "lonely", "StreamCluster")))
    token_secret(world, "lonely")
    manifest = external(world)
    manifest["metadata"]["namespace"] = "lonely"
    apply(manifest)
    ready("early", "lonely")


@case
def the_examples_are_ready_in_ten_seconds(world):
    """the external cluster and the orders stream of examples/ are Ready within 10 s"""
    token_secret(world)
    text = with_ports((ROOT / "examples/external-cluster.yaml").read_text(),
                      [world.nodes[0].listen, *(node.http for node in world.nodes)])
    apply(text)
    name = re.search(r"(?m)^  name: (\S+)", text).group(1)
    kubectl("patch", CLUSTERS, name, "--type=merge", "-p", json.dumps(
        {"spec": {"external": {"adminTokenSecretRef": {"name": "headwater-admin"}}}}))
    kubectl("wait", "--for=condition=Ready", f"{CLUSTERS}/{name}", "--timeout=10s")
    begun = time.monotonic()
    kubectl("apply", "--validate=strict", "-f", ROOT / "examples/orders.yaml")
    kubectl("wait", "--for=condition=Ready", f"{STREAMS}/orders", "--timeout=10s")
    seconds = time.monotonic() - begun
    expect(seconds <= 10, f"orders took {seconds:.1f} s to be Ready")
    return f"apply to Ready {seconds:.2f} s"


@case
def the_columns_are_filled(world):
    """`kubectl get` shows the columns, filled"""
    settled("orders")
    out, _ = kubectl("get", STREAMS, "orders")
    head, row = (line.split() for line in out.splitlines()[:2])
    expect(head == ["NAME", "READY", "STATUS", "ASYNC", "SYNC", "LEADER", "PERSISTLAG", "AGE"], f"columns {head}")
    expect(row[:3] == ["orders", "True", "Available"] and row[5] in {n.name for n in world.nodes} and row[6].isdigit(), f"row {row}")
    out, _ = kubectl("get", STREAMS, "-o", "wide")
    expect("NAME-ON-SERVER" in out and "SUBJECTS" in out, out)
    out, _ = kubectl("get", CLUSTERS)
    expect("3/3" in out and "True" in out, out)
    out, _ = kubectl("get", STREAMS, "--field-selector", "spec.clusterRef.name=headwater")
    expect("orders" in out, f"the field selector finds nothing: {out}")


@case
def the_status_shows_every_replica(world):
    """status shows each replica's indexes, phase, snapshot and durability"""
    found = current("orders")
    publish(world, found["spec"]["subjects"][0].replace(">", "new"), 100)
    info = stream_info(world, found["status"]["name"])
    expect(info["state"]["messages"] == 100, f"100 messages, found {info['state']}")
    expect(set(replicas(found)) == {node.name for node in world.nodes}, f"replicas {replicas(found)}")
    for node, entry in replicas(found).items():
        expect(entry["phase"] == "Recovered", f"{node}: {entry}")
        for field in ("role", "appliedIndex", "persistedIndex", "effective", "bootId", "observedAt"):
            expect(field in entry, f"{node} has no {field}: {entry}")
    expect([e["role"] for e in replicas(found).values()].count("Leader") == 1, "not one leader")


@case
def a_stream_at_rest_is_not_written(world):
    """a stream at rest is written once a minute at most, and an annotation does not start a storm"""
    settled("orders")
    kubectl("annotate", STREAMS, "orders", "example.com/note=unknown")
    time.sleep(2)
    versions = set()
    for _ in range(16):
        versions.add(get(STREAMS, "orders")["metadata"]["resourceVersion"])
        time.sleep(0.5)
    expect(len(versions) <= 2, f"{len(versions)} writes in 8 s")
    out, _ = kubectl("get", STREAMS, "orders", "--show-managed-fields", "-o", "json")
    ours = [entry for entry in json.loads(out)["metadata"]["managedFields"] if entry["manager"] == "headwater-operator"]
    expect(len(ours) == 1 and ours[0]["operation"] == "Apply", f"one applied status of ours, found {len(ours)}")
    metrics = world.http(world.operator.port, "/metrics")
    expect('headwater_operator_reconciles_total{kind="stream",outcome="settled"}' in metrics, f"metrics: {metrics}")


REPLICAS_STAY = "spec.replicas cannot change yet"


@case
def replicas_stay_as_they_are(world):
    """the number of replicas of a stream that exists cannot change; one that no stream could have is corrected"""
    expect(current("orders")["spec"]["replicas"] == 3, "the example has another number of replicas")
    for replicas_ in (1, 5, None):
        patch_refused("orders", {"replicas": replicas_}, REPLICAS_STAY)
    patch("orders", {"replicas": 3})
    apply(stream("single", name="SINGLE"))
    settled("single")
    patch_refused("single", {"replicas": 3}, REPLICAS_STAY)
    patch("single", {"replicas": 1})
    patch("single", {"replicas": None})
    settled("single")
    apply(stream("large", name="LARGE", replicas=5))
    wait_until(15, "too few nodes", is_condition(STREAMS, "large", "Ready", "False", contains=("5 replicas need 5 nodes",)))
    patch("large", {"replicas": 3})
    settled("large")
    patch_refused("large", {"replicas": 2}, REPLICAS_STAY)
    kubectl("delete", STREAMS, "single", "large")


# ---------------------------------------------------------------- durability changes

SYNC_MODES = ["always", "interval", "noWait"]


def no_stronger(promise, durability):
    """Whether keeping `promise` takes no more than what is in force at one replica."""
    return SYNC_MODES.index(promise["syncMode"]) >= SYNC_MODES.index(durability["syncMode"]) \
        and promise["allowAsyncFlush"] >= durability["allowAsyncFlush"]


def in_force(found):
    """Each replica's effective durability, where it is known."""
    return {node: entry["effective"] for node, entry in replicas(found).items() if entry.get("effective")}


def follow_flip(world, change, wanted):
    """Patches orders with `change`, follows every status written until all replicas have what is `wanted`, and judges them.

    The replicas move one at a time, the leader of the moment not at all; the stream serves all the while,
    and promises no more than its weakest replica has. Returns the seconds it took.
    """
    found = current("orders")
    publish(world, found["spec"]["subjects"][0].replace(">", "new"), 50)
    has = lambda durability: all(durability.get(key) == value for key, value in wanted.items())

    def arrived():
        now = current("orders")
        if condition(now, "DurabilityInSync")[0] != "True" or not all(map(has, in_force(now).values())):
            raise Failed(f"DurabilityInSync is {condition(now, 'DurabilityInSync')} with {in_force(now)}")
        return True
    begun = time.monotonic()
    with Watch(STREAMS, "orders") as watch:
        patch("orders", change)
        wait_until(40, f"all replicas have {wanted}", arrived)
        seconds = time.monotonic() - begun
        last = get(STREAMS, "orders")["metadata"]["resourceVersion"]
        seen = wait_until(10, "the watch has seen it", lambda: watch.until(last))
    moved = []
    for now in seen:
        done = frozenset(node for node, durability in in_force(now).items() if has(durability))
        expect(len(replicas(now)) == 3, f"three replicas, found {sorted(replicas(now))}")
        # Not Ready for as long as the new configuration is not yet the server's; the roll itself is not a reason to page.
        expect(condition(now, "Ready")[0] == "True" or condition(now, "Ready")[1] == "ConfigNotApplied" and not moved[1:],
               f"a flip on its way is not a reason to page: {condition(now, 'Ready')}")
        if not moved or moved[-1] != done:
            if moved:
                expect(moved[-1] < done and len(done - moved[-1]) == 1, f"not one replica at a time: {sorted(moved[-1])}, then {sorted(done)}")
                leader = now["status"]["leader"]
                expect(leader not in done - moved[-1], f"{leader} was moved while it led")
            moved.append(done)
        # Between the log's word that a replica has moved and that replica's own, the two differ for a moment.
        if len(in_force(now)) == 3 and " settles" not in condition(now, "DurabilityInSync")[2]:
            promise = now["status"]["promise"]
            expect(all(no_stronger(promise, durability) for durability in in_force(now).values()), f"promises {promise} with {in_force(now)}")
    expect(len(moved[0]) == 0 and len(moved[-1]) == 3, f"the watch did not see all of it: {[sorted(m) for m in moved]}")
    promise = seen[-1]["status"]["promise"]
    expect(has(promise), f"wanted {wanted}, promised {promise}")
    metadata = stream_info(world, found["status"]["name"])["config"]["metadata"]
    for key, name in (("allowAsyncFlush", "allow_async_flush"), ("syncMode", "sync_mode"), ("syncInterval", "sync_interval")):
        if key in wanted:
            shown = wanted[key] if isinstance(wanted[key], str) else json.dumps(wanted[key])
            expect(metadata.get(f"headwater.{name}") == (shown if wanted[key] is not None else None),
                   f"plain clients see {metadata} instead of {key} {wanted[key]}")
    settled("orders")
    return seconds


@case
def a_flip_goes_replica_by_replica(world):
    """flipping allowAsyncFlush moves the replicas one at a time, the leader last, until DurabilityInSync"""
    wanted = not current("orders")["spec"].get("allowAsyncFlush", True)
    first = follow_flip(world, {"allowAsyncFlush": wanted}, {"allowAsyncFlush": wanted})
    second = follow_flip(world, {"allowAsyncFlush": not wanted}, {"allowAsyncFlush": not wanted})
    told("orders", "DurabilityStep", contains=("generation",))
    told("orders", "LeaderTransferred", contains=(" from ", " to "))
    return f"to {wanted} {first:.1f} s, back {second:.1f} s"


@case
def sync_modes_go_replica_by_replica(world):
    """syncMode goes from always to interval to noWait and back to always, followed in status replica by replica"""
    took = []
    for wanted in (
            {"syncMode": "interval", "syncInterval": "250ms"},
            {"syncMode": "noWait", "syncInterval": None},
            {"syncMode": "always", "syncInterval": None}):
        took.append(f"{wanted['syncMode']} {follow_flip(world, wanted, wanted):.1f} s")
        out, _ = kubectl("get", STREAMS, "orders")
        expect(out.splitlines()[1].split()[4] == wanted["syncMode"], f"the column SYNC says otherwise: {out}")
    return ", ".join(took)


@case
def mixed_changes_go_replica_by_replica(world):
    """a change that strengthens one promise and weakens another, and one of the interval alone, go the same way"""
    took = [f"{follow_flip(world, wanted, wanted):.1f} s" for wanted in (
        {"syncMode": "interval", "syncInterval": "250ms", "allowAsyncFlush": False},
        {"syncInterval": "2s"},
        {"syncMode": "always", "syncInterval": None, "allowAsyncFlush": True})]
    return ", ".join(took)


@case
def an_operator_killed_in_mid_roll_is_continued(world):
    """kill -9 of the operator in mid-roll: its successor finishes the roll"""
    found = current("orders")
    wanted = not found["spec"].get("allowAsyncFlush", True)
    patch("orders", {"allowAsyncFlush": wanted})
    wait_until(10, "a roll on its way or done", lambda: any(
        value == wanted for value in effective(get(STREAMS, "orders")).values()) or get(STREAMS, "orders")["status"].get("operation"))
    world.operator.kill()
    world.operator = world.start_operator()
    # The successor waits until the dead holder's lease has expired: 15 s.
    wait_until(45, "DurabilityInSync", lambda: condition(current("orders"), "DurabilityInSync")[0] == "True"
               and set(effective(get(STREAMS, "orders")).values()) == {wanted})
    settled("orders")


@case
def a_missing_replica_blocks_the_roll(world):
    """with one node down its replica is Unknown and the roll waits, saying why; it goes on when the node is back"""
    found = current("orders")
    wanted = not found["spec"].get("allowAsyncFlush", True)
    if wanted:
        # Only tightening waits for everybody.
        patch("orders", {"allowAsyncFlush": True})
        settled("orders", seconds=40)
        wanted = False
    victim = next(node for node in world.nodes if node.name != current("orders")["status"]["leader"])
    victim.process.kill()
    wait_until(30, "the replica is Unknown", lambda: replicas(get(STREAMS, "orders"))[victim.name]["phase"] == "Unknown")
    patch("orders", {"allowAsyncFlush": wanted})
    wait_until(20, "the reason in status", is_condition(STREAMS, "orders", "DurabilityInSync", "False", contains=(victim.name,)))
    found = current("orders")
    expect(condition(found, "Ready")[0] == "True", f"two of three serve, yet {condition(found, 'Ready')}")
    expect(condition(found, "Reconciling")[0] == "True", f"{condition(found, 'Reconciling')}")
    wait_until(20, "the cluster counts two", lambda: get(CLUSTERS, "headwater")["status"].get("nodesReady") == "2/3")
    told("orders", "NodeUnreachable", "Warning", (victim.name,))
    told("orders", "RollBlocked", "Warning", (victim.name,))
    told("headwater", "NodeUnreachable", "Warning", ("does not answer",))
    time.sleep(3)
    done = {node for node, value in effective(get(STREAMS, "orders")).items() if value == wanted}
    expect(victim.name not in done and len(done) < 3, f"rolled although {victim.name} is missing: {done}")
    victim.start()
    wait_until(60, "DurabilityInSync after the node is back", lambda: condition(current("orders"), "DurabilityInSync")[0] == "True"
               and set(effective(get(STREAMS, "orders")).values()) == {wanted})
    settled("orders")
    told("orders", "NodeReachable", contains=(victim.name,))
    told("orders", "Recovered")


# ---------------------------------------------------------------- drift and adoption

@case
def drift_is_repaired(world):
    """a description edited with the nats CLI is put back, with an event"""
    found = current("orders")
    name = found["status"]["name"]
    want = stream_info(world, name)["config"].get("description", "")
    nats(world, "stream", "edit", name, "--description", "edited by hand", "--force")
    expect(stream_info(world, name)["config"]["description"] == "edited by hand", "the edit had no effect")
    wait_until(35, "the description is back", lambda: stream_info(world, name)["config"].get("description", "") == want)
    told("orders", "DriftCorrected", contains=("description",))
    settled("orders")


@case
def describe_reads_well(world):
    """`kubectl describe` shows every condition with reason and message, and the events"""
    out, _ = kubectl("describe", STREAMS, "orders")
    conditions = out.partition("\n  Conditions:\n")[2]
    for type_ in ("Ready", "Reconciling", "Stalled", "ConfigSynced", "Recovered", "DurabilityInSync"):
        status, reason, message = condition(get(STREAMS, "orders"), type_)
        # Keys in the order of the alphabet: Message, Reason, Status, Type.
        shown = re.search(rf"(?m)^    Message: *(.*)\n(?:.*\n)?    Reason: +(\S+)\n    Status: +(\S+)\n    Type: +{type_}$", conditions)
        expect(shown, f"{type_} is not shown: {out}")
        expect(shown.groups() == (message, reason, status), f"{type_} is {(message, reason, status)}, shown as {shown.groups()}")
    rows = out.partition("\nEvents:\n")[2].splitlines()
    expect(rows[0].split() == ["Type", "Reason", "Age", "From", "Message"], f"the heading of events: {rows[:1]}")
    shown = {line.split()[1]: line for line in rows[2:]}
    for reason, type_, text in (
            ("DriftCorrected", "Normal", "description"), ("DurabilityStep", "Normal", "generation"), ("NodeUnreachable", "Warning", "node-")):
        line = shown.get(reason, "")
        expect(line.split()[:1] == [type_] and "headwater-operator" in line and text in line, f"event {reason}: {rows}")


@case
def observe_only_reports_and_changes_nothing(world):
    """updatePolicy ObserveOnly reports a difference and leaves the server alone"""
    create(world, "WATCHED", description="theirs")
    apply(stream("watched", name="WATCHED", subjects=["watched"], description="ours", updatePolicy="ObserveOnly"))
    wait_until(15, "ConfigSynced=False", is_condition(STREAMS, "watched", "ConfigSynced", "False"))
    time.sleep(3)
    expect(stream_info(world, "WATCHED")["config"]["description"] == "theirs", "the server was changed")
    kubectl("delete", STREAMS, "watched")


@case
def adoption_keeps_what_the_spec_leaves_open(world):
    """adopting a stream keeps its messages and every option that the spec leaves unset"""
    made = create(world, "ADOPTED", description="made by hand", max_msgs=1000, max_age=3_600_000_000_000, allow_direct=True,
                  metadata={"team": "blue"}, num_replicas=3)
    publish(world, "adopted", 10)
    apply(stream("adopted", name="ADOPTED", maxMsgs=2000))
    settled("adopted")
    info = stream_info(world, "ADOPTED")
    expect(info["state"]["messages"] == 10, f"messages {info['state']}")
    expect(info["created"] == made["created"], "the stream was made anew")
    for key in ("description", "max_age", "allow_direct", "num_replicas", "subjects"):
        expect(info["config"].get(key) == made["config"].get(key), f"{key}: {made['config'].get(key)} -> {info['config'].get(key)}")
    expect(info["config"]["max_msgs"] == 2000, "the spec's own field was not applied")
    expect(info["config"]["metadata"].get("team") == "blue", "metadata was wiped")
    told("adopted", "Adopted", contains=("max_msgs",))
    # What it has may be written down; another number is a change.
    patch_refused("adopted", {"replicas": 2}, REPLICAS_STAY)
    patch("adopted", {"replicas": 3})
    settled("adopted")


@case
def adoption_is_refused_when_told_so(world):
    """adoptionPolicy Never leaves an existing stream alone and says so; so does a second object for one stream"""
    create(world, "THEIRS", description="theirs")
    apply(stream("theirs", name="THEIRS", subjects=["theirs"], description="ours", adoptionPolicy="Never"))
    wait_until(15, "Stalled", is_condition(STREAMS, "theirs", "Stalled", "True", "AdoptionRefused"))
    apply(stream("second", name="ADOPTED", maxMsgs=1))
    wait_until(15, "the second object is Stalled", is_condition(STREAMS, "second", "Stalled", "True", contains=("default/adopted",)))
    expect(stream_info(world, "THEIRS")["config"]["description"] == "theirs", "THEIRS was changed")
    expect(stream_info(world, "ADOPTED")["config"]["max_msgs"] == 2000, "ADOPTED was changed")
    kubectl("delete", STREAMS, "theirs", "second")
    expect(stream_info(world, "THEIRS") and stream_info(world, "ADOPTED"), "deleting a refused object removed data")


@case
def what_the_server_refuses_is_stalled(world):
    """a configuration that the server refuses makes the object Stalled with the server's words, and mending it heals"""
    apply(stream("overlap", name="OVERLAP", subjects=["adopted"]))
    wait_until(15, "Stalled", is_condition(STREAMS, "overlap", "Stalled", "True", contains=("subjects",)))
    apply(stream("overlap", name="OVERLAP", subjects=["overlap.>"]))
    settled("overlap")
    kubectl("delete", STREAMS, "overlap")


# ---------------------------------------------------------------- deletion

@case
def retain_keeps_the_data(world):
    """deleting an object keeps the stream by default, and carries no finalizer"""
    expect(not get(STREAMS, "adopted")["metadata"].get("finalizers"), "a finalizer without deletionPolicy Delete")
    kubectl("delete", STREAMS, "adopted", "--timeout=10s")
    time.sleep(2)
    expect(stream_info(world, "ADOPTED")["state"]["messages"] == 10, "data is gone")


@case
def delete_removes_the_data(world):
    """deletionPolicy Delete removes the stream from the server"""
    apply(stream("doomed", name="DOOMED", subjects=["doomed"], replicas=3, deletionPolicy="Delete"))
    settled("doomed")
    publish(world, "doomed", 5)
    expect(get(STREAMS, "doomed")["metadata"].get("finalizers") == ["headwater.dev/stream"], "no finalizer")
    kubectl("delete", STREAMS, "doomed", "--timeout=20s")
    told("doomed", "StreamDeleted")
    expect(stream_info(world, "DOOMED") is None, "the stream is still there")


@case
def retain_set_late_wins(world):
    """Retain set before the deletion, or while it is held, removes the finalizer and keeps the data"""
    apply(stream("spared", name="SPARED", subjects=["spared"], deletionPolicy="Delete"))
    settled("spared")
    patch("spared", {"deletionPolicy": "Retain"})
    kubectl("delete", STREAMS, "spared", "--timeout=20s")
    expect(stream_info(world, "SPARED"), "the data is gone")
    apply(stream("pardoned", name="PARDONED", subjects=["pardoned"], deletionPolicy="Delete"))
    settled("pardoned")
    kubectl("annotate", STREAMS, "pardoned", "headwater.dev/paused=true")
    kubectl("delete", STREAMS, "pardoned", "--wait=false")
    patch("pardoned", {"deletionPolicy": "Retain"})
    wait_until(20, "it is gone", lambda: get(STREAMS, "pardoned") is None)
    told("pardoned", "DataRetained", contains=("stay on the server",))
    expect(stream_info(world, "PARDONED"), "the data is gone")


@case
def delete_and_apply_again_ends_as_the_last_manifest(world):
    """delete and re-create in quick succession ends with the last manifest, empty"""
    for round_ in range(5):
        apply(stream("phoenix", name="PHOENIX", subjects=["phoenix"], deletionPolicy="Delete", maxMsgs=10 + round_))
        if round_ == 0:
            settled("phoenix")
            publish(world, "phoenix", 3)
        if round_ < 4:
            kubectl("delete", STREAMS, "phoenix", "--wait=false")
            wait_until(20, "the old object is gone", lambda: not (get(STREAMS, "phoenix") or {}).get("metadata", {}).get("deletionTimestamp"))
    settled("phoenix")
    info = stream_info(world, "PHOENIX")
    expect(info["config"]["max_msgs"] == 14 and info["state"]["messages"] == 0, f"{info['config']} {info['state']}")
    kubectl("delete", STREAMS, "phoenix", "--timeout=20s")


@case
def a_finalizer_never_waits_for_a_cluster_object_that_is_gone(world):
    """with its StreamCluster object gone a Stream with policy Delete still goes away, and so does its namespace"""
    kubectl("create", "namespace", "leaving")
    token_secret(world, "leaving")
    manifest = external(world)
    manifest["metadata"]["namespace"] = "leaving"
    apply(manifest)
    apply({**stream("last", name="LAST", subjects=["last"], deletionPolicy="Delete"), "metadata": {"name": "last", "namespace": "leaving"}})
    ready("last", "leaving")
    kubectl("delete", CLUSTERS, "headwater", "-n", "leaving")
    kubectl("delete", "namespace", "leaving", "--timeout=40s")
    expect(stream_info(world, "LAST"), "data was removed although nobody could be asked")


@case
def an_unreachable_cluster_blocks_deletion_with_a_reason(world):
    """unreachable nodes hold a deletion back with the reason and the annotation that forces it; forcing works"""
    dead = cluster("dead", clientURL="nats://127.0.0.1:1", adminURLs=["http://127.0.0.1:1"])
    apply(dead)
    apply(stream("stuck", name="STUCK", clusterRef={"name": "dead"}, deletionPolicy="Delete"))
    wait_until(20, "ClusterUnreachable", is_condition(STREAMS, "stuck", "Ready", "Unknown", "ClusterUnreachable"))
    wait_until(20, "the cluster says so", is_condition(CLUSTERS, "dead", "Ready", "False", "Unreachable"))
    # A finalizer is set before anything may exist on the server, so it is there although nothing was created.
    wait_until(10, "the finalizer", lambda: get(STREAMS, "stuck")["metadata"].get("finalizers"))
    kubectl("delete", STREAMS, "stuck", "--wait=false")

    def explained():
        found = get(STREAMS, "stuck")
        expect(found, "gone although the cluster could not be asked")
        return any("headwater.dev/force-finalize" in c.get("message", "") for c in found["status"]["conditions"])
    wait_until(20, "the annotation is named", explained)
    kubectl("annotate", STREAMS, "stuck", "headwater.dev/force-finalize=true")
    wait_until(15, "it is gone", lambda: get(STREAMS, "stuck") is None)
    kubectl("delete", CLUSTERS, "dead")


@case
def a_wrong_token_is_reported(world):
    """a refused or absent admin token shows in the cluster's conditions, and a correct one heals"""
    kubectl("create", "namespace", "locked")
    manifest = external(world)
    manifest["metadata"]["namespace"] = "locked"
    apply(manifest)
    wait_until(20, "TokenNotFound", is_condition(CLUSTERS, "headwater", "Ready", "False", "TokenNotFound", "locked", ("headwater-admin",)))
    token_secret(world, "locked")
    wait_until(40, "Ready", is_condition(CLUSTERS, "headwater", "Ready", "True", None, "locked"))


@case
def namespaces_end_without_the_operator(world):
    """with the operator gone, deleting a namespace with streams still ends"""
    expect(world.operator.stop() == 0, "the operator did not stop in order")
    kubectl("delete", "namespace", "lonely", "locked", "--timeout=40s")
    world.operator = world.start_operator()
    wait_until(20, "the operator leads again", lambda: lease()["holderIdentity"])


@case
def pausing_the_operator_never_makes_two(world):
    """an operator paused past its lease ends itself when it wakes, because another one leads"""
    second = world.start_operator()
    wait_until(10, "the second is ready", lambda: world.http(second.port, "/readyz") == "ok\n")
    first = lease()["holderIdentity"]
    world.operator.signal(signal.SIGSTOP)
    wait_until(30, "the second leads", lambda: lease()["holderIdentity"] not in ("", first))
    world.operator.signal(signal.SIGCONT)
    wait_until(15, "the first ends", lambda: not world.operator.running())
    expect(world.operator.child.returncode != 0, "losing the lease is not a success")
    world.operator = second


# ---------------------------------------------------------------- charts

@case
def the_charts_objects_are_accepted(world):
    """what the charts render is accepted by the API server"""
    charts = sorted(path.parent for path in (ROOT / "charts").glob("*/Chart.yaml"))
    expect(charts, "no charts")
    kubectl("create", "namespace", "charts")
    wrong = []
    for chart in charts:
        try:
            rendered = helm_template(chart, "charts")
            _, err = kubectl("apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-n", "charts",
                             "-f", "-", stdin=rendered)
            expect("Warning" not in err, err.strip())
        except Failed as failed:
            wrong.append(f"{chart.name}: {failed}")
    expect(not wrong, "\n  ".join(wrong))
