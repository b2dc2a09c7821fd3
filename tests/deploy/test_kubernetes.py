"""The manifests are what Kubernetes takes, down to the last field, and what they refer to is there."""

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from clew.app.settings import Settings, variable
from clew.pipeline.load import load
from tests.deploy.files import MANIFESTS, PIPELINE, containers, pods, resources

#: The oldest version of Kubernetes that they are for, and the newest that there is a schema of.
VERSIONS = ("1.30", kubernetes_validate.latest_version())
NAMED = [pytest.param(one, id=f"{one['kind']} {one['metadata']['name']}") for one in resources()]


@pytest.mark.parametrize("resource", NAMED)
def test_every_field_of_a_manifest_is_one(resource: dict[str, Any]) -> None:
    for version in VERSIONS:
        kubernetes_validate.validate(resource, version, strict=True)


def test_a_wrong_manifest_is_refused() -> None:
    (engine,) = [one for one in resources("Deployment") if one["metadata"]["name"] == "sales-engine"]
    engine["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]["tcpSockets"] = {"port": 1}
    with pytest.raises(kubernetes_validate.ValidationError, match="tcpSockets"):
        kubernetes_validate.validate(engine, VERSIONS[0], strict=True)
    (service,) = resources("Service")
    service["spec"]["ports"][0]["port"] = "many"
    with pytest.raises(kubernetes_validate.ValidationError, match="many"):
        kubernetes_validate.validate(service, VERSIONS[0], strict=True)


def test_every_manifest_is_read() -> None:
    assert {path.stem for path in MANIFESTS} == {"engine", "gc", "groups", "secrets", "settings"}
    names = [(one["kind"], one["metadata"]["name"]) for one in resources()]
    assert len(names) == len(set(names))


def test_every_group_of_the_pipeline_has_two_processes() -> None:
    deployed = {
        one["spec"]["template"]["spec"]["containers"][0]["args"][1]: one["spec"]["replicas"]
        for one in resources("Deployment")
        if one["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"] == "group"
    }
    assert deployed == dict.fromkeys(load(str(PIPELINE)).graph().groups, 2)


def test_the_pipeline_that_is_deployed_is_the_one_beside_it() -> None:
    (kept,) = [one for one in resources("ConfigMap") if one["metadata"]["name"] == "sales-pipeline"]
    assert kept["data"] == {"sales.py": PIPELINE.read_text()}


def test_pods_are_those_that_are_selected() -> None:
    for one in resources("Deployment"):
        assert one["spec"]["selector"]["matchLabels"].items() <= one["spec"]["template"]["metadata"]["labels"].items()
    (service,) = resources("Service")
    selected = [pod for pod in pods() if service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()]
    assert [pod["spec"]["containers"][0]["name"] for pod in selected] == ["engine"]


def keys(kind: str, name: str) -> set[str]:
    (found,) = [one for one in resources(kind) if one["metadata"]["name"] == name]
    return {*found.get("data", {}), *found.get("stringData", {})}


def test_what_pods_take_from_others_is_there() -> None:
    claims = {one["metadata"]["name"] for one in resources("PersistentVolumeClaim")}
    for pod in pods():
        for volume in pod["spec"]["volumes"]:
            if "secret" in volume:
                items = {item["key"] for item in volume["secret"].get("items", ())}
                assert items <= keys("Secret", volume["secret"]["secretName"])
            if "configMap" in volume:
                assert keys("ConfigMap", volume["configMap"]["name"])
            if "persistentVolumeClaim" in volume:
                assert volume["persistentVolumeClaim"]["claimName"] in claims
    for container in containers():
        for taken in (one["valueFrom"]["secretKeyRef"] for one in container["env"]):
            assert taken["key"] in keys("Secret", taken["name"])


def test_every_file_on_a_command_line_is_mounted() -> None:
    for pod in pods():
        volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
        for container in pod["spec"]["containers"]:
            mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
            assert set(mounts.values()) == volumes
            paths = [word.partition("=")[2] or word for word in container["args"]]
            places = {str(Path(path).parent) for path in paths if path.startswith("/")}
            assert places <= set(mounts), container["name"]


def test_variables_of_clew_are_settings() -> None:
    known = {variable(name) for name in Settings.model_fields}
    given = {one["name"] for container in containers() for one in container["env"]} | keys(
        "ConfigMap", "sales-settings"
    )
    assert {name for name in given if name.startswith("CLEW_")} == {"CLEW_BODIES", "CLEW_LEASE", "CLEW_LOG"} & known
    # Those that Kubernetes would add for a service have such names too.
    assert not any(pod["spec"]["enableServiceLinks"] for pod in pods())


def test_secrets_come_without_a_value() -> None:
    assert {value for one in resources("Secret") for value in one["stringData"].values()} == {""}
