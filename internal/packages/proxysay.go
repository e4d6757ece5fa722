// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"slices"

	"github.com/gpuadm/gpuadm/internal/pattern"
)

var (
	// sayConnect is how apt 2.x, and dnf by curl, name who does not answer.
	sayConnect = pattern.Of(`(?:[Cc]ould not connect to|Failed to connect to|Unable to connect to|Could not resolve(?: proxy| host)?:?) '?([A-Za-z0-9.-]+)'?(?:(?::| port )([0-9]+))?`)
	sayHost    = pattern.Of(`https?://(?:[^/@\s]*@)?([A-Za-z0-9.-]+)`)
)

// deadProxy names the proxy that does not answer: whoever was connected to and has none of the addresses that were asked for.
// "" if it is the server itself that does not, or neither is named. Who is on a port of the web's may be a server too that
// another has sent us on to, or that an SRV record names (apt's methods/connect.cc).
func deadProxy(said string) string {
	var asked []string
	for _, m := range sayHost().FindAllStringSubmatch(said, -1) {
		asked = append(asked, m[1])
	}
	for _, m := range sayConnect().FindAllStringSubmatch(said, -1) {
		switch name := m[1]; {
		case len(asked) == 0, slices.Contains(asked, name), slices.Contains([]string{"server", "name", "hostname", "proxy", "host"}, name):
		case m[2] == "80", m[2] == "443":
		case m[2] != "":
			return name + ":" + m[2]
		default:
			return name
		}
	}
	return ""
}

// unreached says of a repository that does not answer whether the proxy is why, and what to do. own is where the packager has
// settings of its own.
func unreached(said, own, where string) (why string, try []string) {
	if proxy := deadProxy(said); proxy != "" {
		return "the proxy " + proxy + " does not answer", []string{"see that the proxy is the right one, and runs: http and https in [proxy] of node.toml, or " + own}
	}
	return "it cannot be reached", []string{"see that the address is right, and can be reached from this machine: " + where}
}
