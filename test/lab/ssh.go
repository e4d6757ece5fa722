// SPDX-License-Identifier: Apache-2.0

package lab

// sshDist is the distribution of hosts with Options.SSH.
const sshDist = "bookworm"

// sshLayer has an SSH server and client, sudo, and Ansible, with what its module for packages needs
// on the hosts.
func sshLayer() layer {
	return layer{
		name:     "ssh",
		recipe:   "1",
		packages: []string{"openssh-server", "openssh-client", "sudo", "ansible-core", "python3-apt"},
	}
}

// furnishSSH keeps the manager of a user who has logged out: in cgroups of the first version a
// systemd that is itself in a container is not told that the manager's have emptied, and waits for
// them for minutes, as the user's next login does. See furnishKubelet.
func (m *Machine) furnishSSH(put putFunc) error {
	if !m.Options.SSH {
		return nil
	}
	return put("/etc/systemd/logind.conf.d/10-lab.conf", "[Login]\nUserStopDelaySec=infinity\n", 0o644)
}
