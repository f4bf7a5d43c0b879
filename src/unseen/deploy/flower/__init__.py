"""Rounds across machines that keep their data, over Flower.

Each exchange is one Flower message to a site and one back. Both are a `SiteMessage` (`message.py`): a JSON
header and named arrays. Whoever runs Flower's SuperLink is the coordinator; a site is a SuperNode.

    ask         request                                         answer
    ----------  ----------------------------------------------  ------------------------------------------
    census      how images are read (size, ...)                 site's name, classes, samples of each,
                                                                shape of a sample, fingerprint
    train       job, round, weights (one model per client       per client of the site: weights,
                where they circulate), what the method          what the method sends, counts, loss
                broadcasts, each client's state version
    consult     messages of the protection's server side        each client's answer or refusal
    evaluate    job, weights, which splits                      sums from which metrics are computed

The job is the whole resolved configuration, together with what no single site can know: the names of all
domains and classes in their order, and the source domains. From it and its own samples a site builds the same
split, clients and model as on one machine. Every random draw comes from a generator named after the site's
domain or its client, so the weights are equal to the last bit.

Client state is stored at the site, in a folder named after the run, one file per version. The coordinator's
checkpoint says which version (round number) is valid, every request names it, and only then does the site
delete older ones. So a site or the coordinator may crash at any time: the next request says where to
continue. Held-out sites are asked to evaluate, never to train.

Both sides compare a hash of the model's layout and refuse a mismatch. A site that does not answer in time,
answers with an error or with values that are not finite is left out of the round; the records say so, and the
site is notified with the next request.
"""
