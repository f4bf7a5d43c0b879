"""Who is who: certificates, keys of sites, invitations, admitted members."""
