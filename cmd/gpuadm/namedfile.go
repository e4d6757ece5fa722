// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// file reads a file that the command line names; - is standard input.
func (e env) file(name string) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(io.LimitReader(e.stdin, 2<<20))
	}
	return e.read(name)
}

// oneStdin refuses to read standard input twice: the second time it would be empty.
func oneStdin(files []string) error {
	read := 0
	for _, name := range files {
		if name == "-" {
			read++
		}
	}

	if read < 2 {
		return nil
	}
	return usage{&trouble.Error{
		What: "cannot read standard input twice: -f - is there more than once",
		Try:  []string{"name a file in place of the second -"},
	}}
}

const (
	writerPatience = 2 * time.Second  // for a process that begins to write to a FIFO
	readPatience   = 30 * time.Second // for the next bytes of a pipe or a device
)

var (
	errNoWriter = fmt.Errorf("it is a FIFO, and no process has written to it within %v", writerPatience)
	errSilent   = fmt.Errorf("it had nothing to read within %v", readPatience)
	errTooLarge = fmt.Errorf("it has more than %d MiB", host.MaxFile>>20)
)

// readFile reads a file of the caller's, which may be a pipe, or one without an end. It does not
// wait for ever: an open without O_NONBLOCK waits for a process that writes to a FIFO (fifo(7)).
func readFile(name string) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()

	info, err := f.Stat()
	isFIFO := err == nil && info.Mode()&fs.ModeNamedPipe != 0
	end := time.Now().Add(writerPatience)
	for {
		data, err := readAll(f)
		switch {
		case err != nil:
			return nil, err
		case len(data) > 0 || !isFIFO:
			return data, nil
		case time.Now().After(end):
			return nil, errNoWriter
		}

		time.Sleep(20 * time.Millisecond)
	}
}

// readAll reads what comes without a longer pause.
func readAll(f *os.File) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(patient{f}, host.MaxFile+1))
	isSilent := errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, syscall.EAGAIN)
	switch {
	case isSilent:
		return nil, errSilent
	case err == nil && len(data) > host.MaxFile:
		return nil, errTooLarge
	}

	return data, err
}

// patient waits for each read of a pipe or a device, but not for ever.
type patient struct{ *os.File }

func (p patient) Read(buffer []byte) (int, error) {
	_ = p.SetReadDeadline(time.Now().Add(readPatience)) // a regular file has no deadline, and needs none
	return p.File.Read(buffer)
}

// cannotRead says why a file that the command line names cannot be read.
func cannotRead(name string, err error) error {
	isMissing := errors.Is(err, fs.ErrNotExist)
	isHome := strings.HasPrefix(name, "~") && isMissing
	isURL := strings.Contains(name, "://") && isMissing
	switch {
	case isURL:
		return &trouble.Error{
			What: "cannot read " + name + ": gpuadm reads files, and asks no web server",
			Try:  []string{"curl -fsSLo node.toml " + host.ShellWord(name), "then name it: -f node.toml"},
		}
	case errors.Is(err, syscall.EISDIR):
		return &trouble.Error{
			What: "cannot read " + name + ": it is a folder",
			Try:  []string{"name the files in it, each with -f"},
		}
	case isHome:
		return &trouble.Error{
			What: "cannot read " + name + ": only a shell knows ~",
			Try:  []string{"write the whole path"},
		}
	case errors.Is(err, syscall.ENXIO):
		return errors.New("cannot read " + name + ": it is a socket, or a device that is not there")
	case name == "":
		return &trouble.Error{
			What: "cannot read a file without a name",
			Try:  []string{"write its name; if a shell variable has it, set that first"},
		}
	}

	return fmt.Errorf("cannot read %s: %w", name, cause(err))
}

// cause returns the cause of an error without the path, which the message before it has.
func cause(err error) error {
	var ofPath *fs.PathError
	var ofFile *host.FileError
	switch {
	case errors.As(err, &ofPath):
		return ofPath.Err
	case errors.As(err, &ofFile) && ofFile.Note == "":
		return ofFile.Cause
	}

	return err
}
