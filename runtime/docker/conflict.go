// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"fmt"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/jsonedit"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// keyInUnit is a key of daemon.json that the unit's options have, too; "" if there is none. Docker
// does not start then: runtimes alone is merged.
// Sources: findConfigurationConflicts and skipDuplicates in daemon/config/config.go of
// https://github.com/moby/moby (v20.10.24 and v28.5.2);
// https://docs.docker.com/engine/daemon/troubleshoot/ on conflicts between the daemon.json and
// startup scripts.
func keyInUnit(e facts.Engine, file []byte) string {
	doc, err := jsonedit.Parse(file)
	if err != nil {
		return ""
	}
	line := strings.Join(e.Args, " ")
	for _, key := range doc.Keys() {
		if key != runtimesKey && optionIn(line, key) != "" {
			return key
		}
	}

	return ""
}

// optionsOf are the names of dockerd's options for a key: a list's option is in the singular, and
// some have a letter. Source: https://docs.docker.com/reference/cli/dockerd/.
func optionsOf(key string) []string {
	names := []string{key}
	if single, isList := strings.CutSuffix(key, "s"); isList {
		names = append(names, single)
	}

	switch key {
	case "insecure-registries":
		names = append(names, "insecure-registry")
	case "hosts":
		names = append(names, "H")
	case "debug":
		names = append(names, "D")
	case "log-level":
		names = append(names, "l")
	case "group":
		names = append(names, "G")
	case "pidfile":
		names = append(names, "p")
	}
	return names
}

// inBoth says which key is in daemon.json and in the unit's options, and where the option is.
func inBoth(v host.View, e facts.Engine, key, what string) error {
	option := optionIn(strings.Join(e.Args, " "), key)
	from := "systemctl cat " + engine.UnitOf(e) + " shows where"
	for _, name := range e.Started {
		text, _ := v.ReadFile(name)
		if optionIn(string(text), key) != "" {
			from = "it is in " + name
		}
	}

	t := &trouble.Error{
		What:    what,
		Because: []string{fmt.Sprintf("%s starts it with %s: %s", engine.UnitOf(e), option, from)},
		Try: []string{
			fmt.Sprintf("take %s out of the unit, then: systemctl daemon-reload", option),
			fmt.Sprintf("or take %q out of %s", key, e.Config),
		},
	}
	if key == defaultKey {
		t.Try[1] = "or leave set_as_default out of [runtime]"
	}
	return t
}

// optionIn is the option for a key as a text has it; "" if it has none.
func optionIn(text, key string) string {
	for _, word := range strings.Fields(text) {
		word, _, _ = strings.Cut(strings.Trim(word, `"'`), "=")
		for _, name := range optionsOf(key) {
			if word == "--"+name || len(name) == 1 && word == "-"+name {
				return word
			}
		}
	}
	return ""
}
