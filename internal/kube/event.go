// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"hash/fnv"
	"net/http"
	"strings"
	"time"
)

// maxNote is how many bytes of text an Event may carry: maxMessageLength in kubernetes
// pkg/apis/core/validation/events.go.
const maxNote = 1024

// Event creates an Event about a Node.
func (c *Client) Event(ctx context.Context, node string, ev Event) error {
	if len(ev.Message) > maxNote {
		ev.Message = strings.ToValidUTF8(ev.Message[:maxNote-3], "") + "..."
	}

	ev.APIVersion = "v1"
	ev.Kind = "Event"
	ev.Namespace = "default"
	ev.Source.Component = agent
	ev.InvolvedObject = Reference{
		APIVersion: "v1",
		Kind:       "Node",
		Name:       node,
		UID:        node, // kubectl describe node looks for this UID
	}

	now := c.now()
	ev.Count = 1
	ev.FirstTimestamp = now.UTC().Truncate(time.Second)
	ev.LastTimestamp = ev.FirstTimestamp

	// The client chooses the name, so that a retry after a lost answer does not create a second
	// Event. Clocks may stop or go back, so the name includes a hash of the text.
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(ev.Reason + " " + ev.Message))
	ev.Name = fmt.Sprintf("%s.%x%08x", node, now.UnixNano(), hash.Sum32())

	return c.do(ctx, call{
		verb:   "create",
		what:   "an event about node " + node,
		right:  "create events",
		method: http.MethodPost,
		path:   "/api/v1/namespaces/default/events",
		names:  []string{node},
		send:   ev,
		again:  true,
	})
}
