"""mig.sh: what it does with the policy, the template and the group of a slice."""

from launch_cloud import BUCKET, MIG

WAITS = "CREATING HOST_STOCKOUT"


def test_while_there_is_no_capacity_it_waits_and_a_group_that_gives_up_is_made_again(cloud):
    gives_up = "FAILED HOST_STOCKOUT"
    cloud.answers(
        [
            "absent",
            WAITS,
            WAITS,
            gives_up,
            "absent",
            "CREATING",
            "UNAVAILABLE",
            "STAGING",
            "RUNNING",
        ],
        [0],
    )
    done = cloud.run("mig.sh", *MIG, "--autodelete", "--", *BUCKET)
    assert done.returncode == 0, done.stderr
    delete, create = ["delete"] * 3, ["create"] * 2
    did = [command for command in cloud.commands() if command != "describe"]
    assert did == [*create, *delete, *create, "scp", "ssh", *delete]
    assert done.stderr.count("no hosts: ZONE_RESOURCE_POOL_EXHAUSTED") == 3
    assert done.stderr.count("next try in") == 4


def test_what_an_earlier_launch_has_left_is_replaced(cloud):
    cloud.answers(["absent", "RUNNING"], [])
    cloud.fails(create=["HAS_POLICY", "HAS_POLICY", "HAS_TEMPLATE"])
    words = ["--accelerator=v6e-16", "--boot", "--autodelete"]
    assert cloud.run("mig.sh", *MIG, *words, "--", *BUCKET).returncode == 0
    did = [
        (call["argv"][2], command)
        for call, command in zip(cloud.calls(), cloud.commands(), strict=True)
        if command != "describe"
    ]
    policy, template, group = "resource-policies", "instance-templates", "instance-groups"
    # Once; what is there after that is of this launch.
    assert did == [
        (policy, "create"),
        (template, "delete"),
        (policy, "delete"),
        (policy, "create"),
        (template, "create"),
        (group, "create"),
    ]
    # A booted group deletes itself.
    script = cloud.calls()[-3]["metadata"]["startup-script"].splitlines()[1]
    assert "set -- --boot" in script
    assert "sleep\\ 60\\;\\ gcloud\\ compute\\ instance-groups\\ managed\\ delete\\ xlnet" in script
