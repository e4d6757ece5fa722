// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/gpuadm/gpuadm/internal/converge"
)

// heard keeps what is logged.
type heard struct{ lines *[]string }

func (heard) Levels() []logrus.Level { return logrus.AllLevels }

func (h heard) Fire(e *logrus.Entry) error {
	*h.lines = append(*h.lines, e.Message)
	return nil
}

// The journal gets a waiting event at once and then each minute, however many events come.
func TestJournalIsNotFlooded(t *testing.T) {
	var lines []string
	log := logrus.New()
	log.SetOutput(&strings.Builder{})
	log.AddHook(heard{&lines})
	v := logVoice{log, map[string]time.Time{}}
	at := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	for i := range 25 { // as many events as in five minutes
		v.tell(converge.Event{Time: at.Add(time.Duration(i) * 12 * time.Second), Stage: "packages", What: converge.Waiting, Text: "process 4711 (apt-get upgrade) holds it"})
	}
	v.tell(converge.Event{Time: at.Add(290 * time.Second), Stage: "joined", What: converge.Waiting, Text: "for the node"})
	want := slices.Repeat([]string{"packages waiting: process 4711 (apt-get upgrade) holds it"}, 5)
	want = append(want, "joined waiting: for the node")
	if !slices.Equal(lines, want) {
		t.Errorf("told %d times: %q", len(lines), lines)
	}
}

// The journal has how long each change took, as a field.
func TestJournalHasTimes(t *testing.T) {
	fields := map[string]string{}
	log := logrus.New()
	log.SetOutput(&strings.Builder{})
	log.AddHook(kept{fields})
	logVoice{log, nil}.tell(converge.Event{Stage: "modules", What: converge.Made, Change: &converge.Change{Ref: converge.Ref{Kind: "module", Name: "nvidia"}}, Millis: 2300})
	if fields["MS"] != "2300" || fields["STAGE"] != "modules" {
		t.Errorf("%v", fields)
	}
}

// kept keeps the fields of an entry.
type kept struct{ fields map[string]string }

func (kept) Levels() []logrus.Level { return logrus.AllLevels }

func (k kept) Fire(e *logrus.Entry) error {
	_, fields := entry(e)
	maps.Copy(k.fields, fields)
	return nil
}
