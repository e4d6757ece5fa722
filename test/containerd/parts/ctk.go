package parts

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// CTKRun is what a run of nvidia-ctk left behind.
type CTKRun struct {
	// Files is the whole tree after the run.
	Files map[string][]byte
	// Exit is the exit status.
	Exit int
	// Stderr is the log.
	Stderr string
}

// RunCTK runs "nvidia-ctk runtime configure --runtime=containerd" on the
// config tree under root (see Lay) as a user would, with its default file
// names moved into the tree. More flags may follow. The tree is changed in
// place, so a daemon can dump it afterwards.
func (p Part) RunCTK(t testing.TB, root string, flags ...string) CTKRun {
	t.Helper()
	args := append([]string{
		"--runtime=containerd",
		"--config=" + filepath.Join(root, "config.toml"),
		"--drop-in-config=" + filepath.Join(root, "conf.d", "99-nvidia.toml"),
	}, flags...)
	file := p.question(root, args...)
	if a, ok := known(file); ok && p.relay(root, a.Files) == nil {
		return CTKRun{Files: a.Files, Stderr: string(a.Stderr), Exit: a.Exit}
	}
	run := p.Configure(t, root, args...)
	run.Files = Files(t, root)
	learn(file, answer{
		Files:  run.Files,
		Stderr: []byte(run.Stderr),
		Exit:   run.Exit,
	})
	return run
}

// Configure runs "nvidia-ctk runtime configure" with these flags; it reads no file back.
func (p Part) Configure(t testing.TB, root string, flags ...string) (run CTKRun) {
	t.Helper()
	_, stderr, err := p.exec(t, root, append([]string{"runtime", "configure"}, flags...)...)
	run.Stderr = stderr
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		run.Exit = exit.ExitCode()
	}
	return run
}

// relay makes the tree what it became when the program ran.
func (p Part) relay(root string, files map[string][]byte) error {
	for name, text := range files {
		at := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, bytes.ReplaceAll(text, []byte(etc), []byte(root)), 0o644)); err != nil {
			return err
		}
	}
	return nil
}
