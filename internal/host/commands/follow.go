// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"context"
	"strings"

	"github.com/gpuadm/gpuadm/internal/mask"
)

type follower struct{}

// Follow has a function told each line that a command of Do prints on its standard output, secrets masked, when the command prints it.
func Follow(ctx context.Context, told func(line string)) context.Context {
	return context.WithValue(ctx, follower{}, told)
}

// lines cuts what is written to it into lines. A carriage return ends one too: progress bars have no other end.
type lines struct {
	told func(string)
	part []byte
}

func (l *lines) Write(p []byte) (int, error) {
	for _, b := range p {
		if b != '\n' && b != '\r' {
			if len(l.part) < 200 {
				l.part = append(l.part, b)
			}
			continue
		}
		if text := strings.TrimSpace(strings.ToValidUTF8(string(l.part), "?")); text != "" {
			l.told(mask.Message(text))
		}
		l.part = l.part[:0]
	}
	return len(p), nil
}
