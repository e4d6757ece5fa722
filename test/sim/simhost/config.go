// SPDX-License-Identifier: Apache-2.0

package simhost

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/pelletier/go-toml/v2"
)

// config is the section sim.toml.
type config struct {
	Live    *bool     // false for an image; true if not said
	Now     time.Time // the wall clock
	Booted  time.Time // when it booted; an hour before now if not said
	BootID  string    `toml:"boot_id"`
	Absent  []string  // names looked for and not found when it was recorded; for the reader, absent is absent
	Unit    []unit
	Command []command
	Driver  *driverConfig
	GPU     []gpuConfig
}

// unit is a unit that is known beyond what its files say. One without a unit file gets one.
type unit struct {
	Name    string
	Load    string // loaded if not said; not-found makes no file
	Enabled string // enabled, disabled, static, masked
	Active  string // inactive if not said
	Sub     string // systemd's SubState, while Active is as said
	Started time.Time
	PID     int
	Files   []string // recorded; what the node has is read from its files
	Reads   []string // what the daemon reads at its start, the last part may be a pattern
	Makes   []string // sockets it makes in /run
	Refuses string   // a pattern of content it does not start with
}

// command is a command the node can answer.
type command struct {
	Argv    []string
	Prefix  bool // more arguments may follow
	Stdout  string
	Stderr  string
	Exit    int
	Looks   *bool             // false: it changes something; if not said, whether it writes and removes nothing
	Writes  map[string]string // files it writes
	Removes []string          // files it removes
}

func (c command) looks() bool {
	if c.Looks != nil {
		return *c.Looks
	}
	return len(c.Writes)+len(c.Removes) == 0
}

func (c *config) parse(data []byte) error {
	d := toml.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	err := d.Decode(c)
	var strict *toml.StrictMissingError
	if errors.As(err, &strict) {
		return fmt.Errorf("%w:\n%s", err, strict.String())
	}
	return err
}

// configure takes over all but the units, which need the files.
func (n *Node) configure(c config) error {
	if c.Live != nil {
		n.live = *c.Live
	}
	if !c.Now.IsZero() {
		n.now = c.Now
	}
	n.booted = c.Booted
	if n.booted.IsZero() {
		n.booted = n.now.Add(-time.Hour)
	}
	if c.BootID != "" {
		n.bootID = c.BootID
	}
	for _, command := range c.Command {
		if len(command.Argv) == 0 {
			return errors.New("a [[command]] without argv")
		}
	}

	n.commands = c.Command
	return n.configureGPUs(c.Driver, c.GPU)
}

func (n *Node) configureUnits(units []unit) error {
	defer func(now time.Time) { n.now = now }(n.now)
	n.now = n.booted.Add(-24 * time.Hour) // the files that units are given have always been there

	for _, u := range units {
		if u.Name == "" {
			return errors.New("a [[unit]] without name")
		}
		if err := n.configureUnit(u); err != nil {
			return fmt.Errorf("unit %s: %w", u.Name, err)
		}
	}

	return nil
}

func (n *Node) configureUnit(u unit) error {
	d := &daemon{unit: u}
	if u.Refuses != "" {
		refuses, err := regexp.Compile(u.Refuses)
		if err != nil {
			return fmt.Errorf("refuses: %w", err)
		}
		d.refuses = refuses
	}

	n.units[u.Name] = d
	if err := n.unitFile(u); err != nil {
		return err
	}

	if u.Active != "active" || !n.live {
		d.active = u.Active
		return nil
	}
	if err := d.start(n, n.booted.Add(10*time.Second)); err != nil {
		return err
	}
	if !u.Started.IsZero() {
		d.started = u.Started
	}
	d.pid = cmp.Or(u.PID, d.pid)
	return nil
}
