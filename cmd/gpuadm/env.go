// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/local"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// env is a command's access to the system; tests replace it.
type env struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	getenv         func(string) string
	args           []string // the command line, without the program
	root           bool     // whether it may change the live machine
	ended          *ending  // the result of the command's run
	open           func(root string) (host.Host, error)
	image          func(root string, sign *local.ModuleKey) (h host.Host, done func(), err error) // opens an image for bake
	read           func(name string) ([]byte, error)                                              // a file named on the command line
	told           func(line string)                                                              // called for each printed command line of gpuadm; may be nil
	stat           func(name string) (fs.FileInfo, error)                                         // the same file's owner and mode; may be nil
	public         func(name string) bool                                                         // whether the calling user can read that file; nil: yes
	confined       func() []string                                                                // what keeps root from what root may do; may be nil
	restartSelf    func(more ...string) error                                                     // replaces this process, once, by a new process with more flags; may be nil
}

// tty says whether w is a terminal that can rewrite its last line.
func (e env) tty(w io.Writer) bool {
	return terminal(w) && e.getenv("TERM") != "dumb"
}

func terminal(w io.Writer) bool {
	f, ok := file(w)
	return ok && term.IsTerminal(int(f.Fd()))
}

// asks says whether gpuadm can ask the operator: on a terminal for both the question and the
// answer.
func (e env) asks() bool {
	in, ok := e.stdin.(*os.File)
	return ok && term.IsTerminal(int(in.Fd())) && e.tty(e.stderr)
}

// specHome is the folder of a machine's own spec.
const specHome = "/etc/gpuadm"

// spec reads the files named with -f, or the machine's own.
func (e env) spec(v host.View, files []string) (spec.Spec, error) {
	all, err := e.specFiles(v, files)
	if err != nil {
		return spec.Spec{}, err
	}
	var trusted []string
	if len(files) == 0 {
		for _, f := range all {
			trusted = append(trusted, f.Name)
		}
		trusted = append(trusted, path.Join(specHome, "node.d"))
	}
	if err := trust(v, trusted...); err != nil {
		return spec.Spec{}, err
	}
	s, err := spec.Parse(all...)
	if err != nil {
		return s, e.unquoted(v, files, err)
	}
	return s, trust(v, s.Files()...)
}

// machine opens the machine, and reads the files named with -f, or its own.
func (c *common) machine() (h host.Host, s spec.Spec, err error) {
	if h, err = c.open(c.rootDir); err == nil {
		s, err = c.spec(h, c.files)
	}
	return h, s, err
}

// asker returns the user who started gpuadm with another user's rights by sudo, run0, pkexec or
// doas; "" if gpuadm has its caller's own rights. Sources: sudo(8), run0(1), pkexec(1) and doas(1),
// each under ENVIRONMENT.
func asker(getenv func(string) string) string {
	return cmp.Or(getenv("SUDO_UID"), getenv("PKEXEC_UID"), getenv("DOAS_USER"))
}

// unquoted removes from errors the quotes of files that the calling user may be unable to read:
// those of -f, and the machine's own.
func (e env) unquoted(v host.View, named []string, err error) error {
	faults := trouble.Faults(nil)
	if !errors.As(err, &faults) {
		return err
	}
	return faults.Unquoted(func(file string) bool {
		if slices.Contains(named, file) {
			return file == "-" || e.public == nil || e.public(file)
		}
		return asker(e.getenv) == "" || host.Public(v, file)
	})
}

// readable says whether the calling user can read a file of this machine. With the user's own
// rights gpuadm has read it already; under sudo the file must be the user's, or readable for every
// user. A pipe such as a shell's <(…) is the user's; a device is not.
func readable(name string) bool {
	by := asker(os.Getenv)
	if by == "" {
		return true
	}
	if i, err := os.Stat(name); err == nil {
		if owner, ok := i.Sys().(*syscall.Stat_t); ok && strconv.Itoa(int(owner.Uid)) == by {
			return true
		}
	}
	at, err := filepath.Abs(name)
	if err != nil {
		return false
	}
	v, err := local.Open("/")
	return err == nil && host.Public(v, at)
}

// specFiles returns the files named with -f, or the machine's own.
func (e env) specFiles(v host.View, files []string) ([]spec.File, error) {
	if len(files) == 0 {
		return machineSpec(v)
	}
	var all []spec.File
	for _, name := range files {
		data, err := e.file(name)
		if errors.Is(err, syscall.EISDIR) {
			return nil, usage{&trouble.Error{What: "cannot read " + name + ": it is a folder", Try: []string{"name the files in it, each with -f"}}}
		} else if strings.HasPrefix(name, "~") && errors.Is(err, fs.ErrNotExist) {
			return nil, usage{&trouble.Error{What: "cannot read " + name + ": only a shell knows ~", Try: []string{"write the whole path"}}}
		} else if err != nil {
			return nil, usage{fmt.Errorf("cannot read %s: %w", name, cause(err))}
		}
		all = append(all, spec.File{Name: name, Data: data})
	}
	return all, nil
}

func (e env) file(name string) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(io.LimitReader(e.stdin, 2<<20))
	}
	return e.read(name)
}

// readFile reads a file of the caller's, which may be a pipe, or one without an end.
func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, host.MaxFile+1))
	if err == nil && len(data) > host.MaxFile {
		err = fmt.Errorf("%s has more than %d MiB", name, host.MaxFile>>20)
	}
	return data, err
}

// self returns this program's own file.
func (e env) self() ([]byte, error) {
	name, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("cannot find this program's own file: %w", err)
	}
	data, err := e.read(name)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", name, cause(err))
	}
	return data, nil
}

// errNoSpec says that the machine has no spec.
var errNoSpec = errors.New("file not found")

func machineSpec(v host.View) ([]spec.File, error) {
	main := path.Join(specHome, "node.toml")
	data, err := v.ReadFile(main)
	if errors.Is(err, fs.ErrNotExist) {
		where := ""
		if v.Root() != "/" {
			where = " in " + v.Root()
		}
		return nil, usage{fmt.Errorf("cannot read %s%s: %w; write one ("+trouble.Command("init")+") or name another with -f", main, where, errNoSpec)}
	} else if err != nil {
		return nil, err
	}
	all := []spec.File{{Name: main, Data: data}}
	names, err := v.ReadDir(path.Join(specHome, "node.d"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, n := range names {
		if !strings.HasSuffix(n, ".toml") || strings.HasPrefix(n, ".") {
			continue
		}
		name := path.Join(specHome, "node.d", n)
		if data, err = v.ReadFile(name); err != nil {
			return nil, err
		}
		all = append(all, spec.File{Name: name, Data: data})
	}
	return all, nil
}

// cause returns the cause of an error without the path, which the message before it has.
func cause(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

func newToken(c *common) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "print a credential for kubelet (kubelet runs this)",
	}
	group(cmd)
	var cluster, region string
	eks := &cobra.Command{
		Use:   "eks",
		Short: "print a token of the machine's role for an EKS cluster",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, err := c.open(c.rootDir)
			if err != nil {
				return err
			}
			token, expires, err := instance.Token(cmd.Context(), h, cluster, region)
			if err != nil {
				return err
			}
			return c.credential(token, expires)
		},
	}
	eks.Flags().StringVar(&cluster, "cluster", "", "`NAME` of the cluster")
	eks.Flags().StringVar(&region, "region", "", "its `REGION`; empty: the machine's own")
	cmd.AddCommand(eks)
	return cmd
}

// credential prints a token in the format of client-go's exec plugins, in the API version that
// client-go asks for.
// Source: https://kubernetes.io/docs/reference/config-api/client-authentication.v1/
func (c *common) credential(token string, expires time.Time) error {
	var asked struct{ APIVersion string }
	if err := json.Unmarshal([]byte(c.getenv("KUBERNETES_EXEC_INFO")), &asked); err != nil || asked.APIVersion == "" {
		asked.APIVersion = "client.authentication.k8s.io/v1"
	}
	return json.NewEncoder(c.stdout).Encode(map[string]any{
		"kind": "ExecCredential", "apiVersion": asked.APIVersion, "spec": map[string]any{},
		"status": map[string]any{"token": token, "expirationTimestamp": expires.UTC().Format(time.RFC3339)},
	})
}
