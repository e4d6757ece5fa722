// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// validateEdit has dockerd validate the file together with the options of its unit: dockerd does
// not start with a key that is in both. The validation starts nothing.
// Source: --validate in https://docs.docker.com/reference/cli/dockerd/; commit 8f80e551 of
// https://github.com/moby/moby (v23.0.0), start in cmd/dockerd/daemon.go at v26.1.5, and
// https://github.com/moby/moby/issues/42393. Docker before 23.0 cannot validate: there gpuadm's own
// parser has to do.
func validateEdit(ctx context.Context, v host.View, e facts.Engine, before, after []byte) error {
	if key := keyInUnit(e, after); key != "" {
		return inBoth(v, e, key, fmt.Sprintf("cannot edit %s: Docker does not start with %s both in it and in its unit", e.Config, key))
	}
	options := unitOptions(e)
	err := validate(ctx, v, e, after, options)
	if err == nil {
		return nil
	}

	t := &trouble.Error{
		What: fmt.Sprintf("cannot edit %s: Docker would not take the result: %v", e.Config, err),
		Try:  []string{"report it with " + trouble.Command("facts --record") + " and the configuration: gpuadm should have known"},
		Err:  err,
	}
	switch {
	case len(options) > 0 && validate(ctx, v, e, after, nil) == nil:
		t.Because = []string{e.Unit + " starts it with " + strings.Join(options, " ")}
		t.Try = []string{"take the option out of the unit (systemctl cat " + e.Unit + "), and write it into " + e.Config}
	case before != nil && validate(ctx, v, e, before, options) != nil:
		t.What = fmt.Sprintf("cannot edit %s: Docker rejects it before the edit: %v", e.Config, err)
		t.Try = []string{fmt.Sprintf("%s --validate --config-file %s, which says where", e.Binary, e.Config)}
	}

	return t
}

// unitOptions are the options that Docker's unit starts it with.
func unitOptions(e facts.Engine) []string { return e.Args[min(1, len(e.Args)):] }

// Loads has Docker validate its present daemon.json as its next start would read it.
func Loads(e facts.Engine) things.PrecheckFunc {
	return engine.Loads(e, Configured, func(ctx context.Context, v host.View) error {
		return askOwn(ctx, v, e)
	})
}

// Verdict says why Docker would not start with the machine's own files. gpuadm asks before each
// restart and each reload.
func Verdict(ctx context.Context, v host.View, e facts.Engine) error {
	if e.Binary == "" {
		return nil
	}
	return engine.Rejected(e, askOwn(ctx, v, e))
}

// askOwn has dockerd validate the machine's own daemon.json, with the options and the variables of
// its unit. It does not need the file, unless an option names it.
func askOwn(ctx context.Context, v host.View, e facts.Engine) error {
	args := append(slices.Clone(unitOptions(e)), "--validate")
	if len(facts.Options(e.Args, "config-file")) == 0 && e.Config != usualConfig {
		args = append(args, "--config-file", e.Config)
	}
	_, err := engine.AskOwn(ctx, v, e, args...)
	err = unlessOld(err)
	if err == nil || errors.As(err, new(engine.NotJudged)) || len(e.Files) == 0 {
		return err
	}
	if key := keyInUnit(e, e.Files[0].Data); key != "" {
		what := fmt.Sprintf("cannot start %s: %s is both in %s and in its unit", engine.UnitOf(e), key, e.Config)
		return inBoth(v, e, key, what)
	}
	return err
}

// usualConfig is what dockerd reads where its options name no file.
const usualConfig = "/etc/docker/daemon.json"

// unlessOld drops the refusal of a Docker before 23.0, which cannot validate: there gpuadm's own
// parser has to do.
func unlessOld(err error) error {
	var command *host.CommandError
	if errors.As(err, &command) && strings.Contains(command.Stderr, "unknown flag: --validate") {
		return nil
	}
	return err
}

// validate has dockerd validate a daemon.json together with these options; nil where it cannot be
// asked.
func validate(ctx context.Context, v host.View, e facts.Engine, data []byte, options []string) error {
	if e.Binary == "" || data == nil {
		return nil
	}

	file := []string{"--validate", "--config-file", host.Scratch + e.Config}
	argv := slices.Concat([]string{e.Binary}, options, file)
	_, err := v.AskAbout(ctx, map[string][]byte{e.Config: data}, argv...)
	if errors.As(err, &host.Later{}) {
		return nil
	}
	return unlessOld(err)
}
