// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/pattern"
)

// Rejection is the answer of a kubelet that does not accept its command line.
type Rejection struct {
	Said  *host.CommandError
	Flag  string   // with its value, as it stands there; "" where kubelet names none
	Files []string // in which the flag stands
}

// Rejected runs kubelet with its command line and --version: kubelet has no dry run, and parses the
// command line before it prints its version. It returns nil for a command line that kubelet
// accepts, and where there is no kubelet to ask; an error is of a kubelet that gives no answer.
// Sources: NewKubeletCommand in cmd/kubelet/app/server.go of
// https://github.com/kubernetes/kubernetes (cleanFlagSet.Parse, then
// verflag.PrintAndExitIfRequested);
// https://kubernetes.io/docs/reference/command-line-tools-reference/kubelet/.
func Rejected(ctx context.Context, v host.View, k facts.Kubelet) (*Rejection, error) {
	if k.Binary == "" || len(k.Args) == 0 {
		return nil, nil
	}
	command := slices.Concat([]string{k.Binary}, k.Args, []string{"--version"})
	_, err := v.Ask(ctx, command...)
	var failed *host.CommandError
	switch {
	case err == nil, host.NotExist(err):
		return nil, nil
	case !errors.As(err, &failed), failed.Code <= 0:
		return nil, err
	}

	rejection := &Rejection{Said: failed}
	name := flagOf(failed.Stderr)
	if name == "" {
		return rejection, nil
	}
	isFlag := func(word string) bool { return hasFlag(word, name) }
	if i := slices.IndexFunc(k.Args, isFlag); i >= 0 {
		rejection.Flag = k.Args[i]
	}

	unit, _ := v.Unit(ctx, k.Unit)
	for _, file := range slices.Concat(unit.Files, k.Reads()) {
		text, _ := v.ReadFile(file)
		if hasFlag(string(text), name) {
			rejection.Files = append(rejection.Files, file)
		}
	}

	return rejection, nil
}

// hasFlag reports whether a text has a flag, and not only one whose name begins with its name.
func hasFlag(text, name string) bool {
	for rest := text; ; {
		_, after, found := strings.Cut(rest, name)
		if !found {
			return false
		}
		if after == "" || strings.ContainsRune(" \t\n=\"'\\", rune(after[0])) {
			return true
		}
		rest = after
	}
}

// The flag in pflag's errors: "unknown flag: --container-runtime", and `invalid argument "x" for
// "--v" flag`.
// Sources: flag.go of https://github.com/spf13/pflag;
// https://github.com/awslabs/amazon-eks-ami/issues/1398.
var rejectedFlag = pattern.Of(`unknown flag: (--[\w-]+)|invalid argument .* for \\?"(?:-\w, )?(--[\w-]+)\\?" flag`)

func flagOf(words string) string {
	found := rejectedFlag().FindStringSubmatch(words)
	if found == nil {
		return ""
	}
	return found[1] + found[2]
}
