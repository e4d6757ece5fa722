// SPDX-License-Identifier: Apache-2.0

package parts

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Run runs a command of this machine and returns its standard output; its error has the last lines
// of standard error.
func Run(ctx context.Context, dir string, env []string, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	cmd.WaitDelay = 5 * time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("cannot run %s %s: %w: %s", filepath.Base(name), strings.Join(args, " "), err, Last(stderr.String(), 5))
	}
	return stdout.Bytes(), nil
}

// Last returns the last n lines of a text as one line, long ones cut.
func Last(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	lines = lines[max(0, len(lines)-n):]
	for i, line := range lines {
		if len(line) > 300 {
			lines[i] = line[:300] + "…"
		}
	}

	return strings.Join(lines, " | ")
}

// Lock locks a file until it is closed, at the latest by the end of the process. how is LOCK_EX,
// perhaps with LOCK_NB.
func Lock(path string, how int) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(file.Fd()), how)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}

	if err != nil {
		_ = file.Close()
		return nil, &fs.PathError{Op: "flock", Path: path, Err: err}
	}
	return file, nil
}

// DebianMirror asks apt which archive this machine uses.
func DebianMirror(ctx context.Context) (string, error) {
	if mirror := os.Getenv("GPUADM_TEST_DEBIAN"); mirror != "" {
		return mirror, nil
	}
	out, err := Run(ctx, "", nil, "apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages")
	if err != nil {
		return "", err
	}
	for site := range strings.Lines(string(out)) {
		site = strings.TrimRight(strings.TrimSpace(site), "/")
		if strings.HasSuffix(site, "/debian") {
			return site, nil
		}
	}

	return "", errors.New("cannot find a Debian archive in this machine's apt sources; GPUADM_TEST_DEBIAN names one")
}

// ModuleEnv is the environment for go where it downloads a module and builds it as the main module.
func ModuleEnv(more ...string) []string {
	return append([]string{"GOFLAGS=-mod=mod -buildvcs=false", "GOWORK=off", "GOBIN="}, more...)
}

// CopyModule downloads MODULE@VERSION and returns a copy of its folder, in which its commands can
// be built as those of the main module: "go install module@version" refuses modules with replace or
// exclude directives in go.mod, as containerd has.
func CopyModule(ctx context.Context, scratch, module string) (string, error) {
	out, err := Run(ctx, scratch, ModuleEnv(), "go", "mod", "download", "-json", module)
	if err != nil {
		return "", err
	}
	var got struct{ Dir string }
	if err := json.Unmarshal(out, &got); err != nil {
		return "", fmt.Errorf("cannot read the answer of go mod download: %w", err)
	}
	src := filepath.Join(scratch, "src")
	if err := os.CopyFS(src, os.DirFS(got.Dir)); err != nil {
		return "", fmt.Errorf("cannot copy the module: %w", err)
	}
	return src, nil
}
